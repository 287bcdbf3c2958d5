"""A part of a torch network: activations come from the part before it, their gradients from the part behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    from torch import Tensor

    from chimera.models.flat_module import FlatModule
    from chimera.models.torch_model import TorchModel


class _Way(NamedTuple):
    """One micro-batch on its way: what is needed to go back."""

    inputs: Tensor
    outputs: Tensor | None  # None if they are computed again
    targets: NDArray[Any] | None
    weight: float
    seed: int


class TorchStage:
    """Forward and backward passes of micro-batches through the layers of one part.

    Whatever is random in a layer is drawn from the seed of its micro-batch and the layer's number in the whole network, so that
    it does not depend on where the network was cut.

    Parameters
    ----------
    model, flat : the part, whose module is an ``nn.Sequential``, and its vectors.
    numbers : of its layers in the whole network.
    first : the place, in the module, of the first of them.
    recompute : whether only inputs are kept, and the rest is computed again on the way back (Chen et al. 2016).

    Attributes
    ----------
    peak_bytes : the most that activations took at a time, of those that autograd keeps for the way back.
    """

    def __init__(
        self, model: TorchModel, flat: FlatModule, numbers: Sequence[int], first: int = 0, *, recompute: bool = False
    ) -> None:
        self._model, self._flat, self._recompute = model, flat, recompute
        layers = list(model.module.children())[first : first + len(numbers)]
        self._layers = list(zip(numbers, layers, strict=True))
        self._begins = 0 in numbers  # nobody asks for the gradient of the network's inputs
        self._ways: dict[int, _Way] = {}
        self._kept: dict[
            int, dict[int, int]
        ] = {}  # by micro-batch: bytes of the memory that autograd keeps, by address
        self.peak_bytes = 0

    def begin(self) -> None:
        """Begin a step: no gradient, and no micro-batch on its way."""
        self._ways, self._kept = {}, {}
        self._flat.module.train()
        self._flat.upload()
        self._flat.zero_gradient()

    def forward(
        self, micro: int, inputs: NDArray[Any], seed: int, targets: NDArray[Any] | None = None, weight: float = 1.0
    ) -> NDArray[Any]:
        """Send a micro-batch through, and return the activations; with its ``targets`` the mean loss, shape ().

        ``weight`` is its share of the batch.
        """
        import torch

        tensor = self._model.tensor_of(inputs)
        if tensor.is_floating_point() and not self._begins:
            tensor.requires_grad_()
        keep = torch.no_grad() if self._recompute else self._counted(micro)
        with keep:
            outputs = self._through(tensor, seed, targets)
        self._ways[micro] = _Way(tensor, None if self._recompute else outputs, targets, weight, seed)
        if self._recompute:
            self._keep(micro, tensor)
        return outputs.detach().cpu().numpy()

    def backward(self, micro: int, gradient: NDArray[Any] | None = None) -> NDArray[Any]:
        """Send the gradient of what `forward` returned back, and return that of its inputs; none for the loss itself."""
        import torch

        way = self._ways.pop(micro)
        outputs = way.outputs
        if outputs is None:
            seen = self._model.buffers()  # have seen this micro-batch once, and are not to see it again
            with self._counted(micro):
                outputs = self._through(way.inputs, way.seed, way.targets)
            self._model.load_buffers(seen)
        given = (
            torch.full_like(outputs, way.weight)
            if gradient is None
            else torch.from_numpy(np.array(gradient)).to(outputs.device)
        )
        outputs.backward(given)  # type: ignore[no-untyped-call]
        self._kept.pop(micro, None)
        back = way.inputs.grad
        return np.empty(0, np.float32) if back is None else back.cpu().numpy()

    def gradient(self) -> Any:
        """Return the gradient of the step, shape (p,), where the part computes."""
        return self._flat.near_gradient()

    def _through(self, tensor: Tensor, seed: int, targets: NDArray[Any] | None) -> Tensor:
        for number, layer in self._layers:
            self._model.reseed(seed * 1009 + number)
            before = tuple(tensor.shape)
            try:
                tensor = layer(tensor)
            except Exception as error:
                error.add_note(f"in layer {number} ({type(layer).__name__}) on inputs of shape {before}")
                raise
            if not hasattr(tensor, "requires_grad"):
                raise ConfigurationError(
                    f"layer {number} ({type(layer).__name__}) returns a {type(tensor).__name__}: in a pipeline each layer "
                    "must return one tensor"
                )
        if targets is None:
            return tensor
        if not len(targets):
            raise DataError("a batch without rows has no loss")
        return self._model.loss_of(tensor, targets)

    def _counted(self, micro: int) -> Any:
        """Return a context in which what autograd keeps is counted."""
        import torch

        def pack(tensor: Tensor) -> Tensor:
            self._keep(micro, tensor)
            return tensor.detach()

        return torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)

    def _keep(self, micro: int, tensor: Tensor) -> None:
        memory = tensor.untyped_storage()
        if memory.data_ptr() != self._flat.address():
            self._kept.setdefault(micro, {})[memory.data_ptr()] = memory.nbytes()
            self.peak_bytes = max(self.peak_bytes, sum(sum(kept.values()) for kept in self._kept.values()))

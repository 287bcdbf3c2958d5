"""A pipeline stage of a torch network: activations come from the previous stage, their gradients from the next one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError, DataError
from chimera.models.module_buffers import check_rows

if TYPE_CHECKING:
    from torch import Tensor

    from chimera.models.flat_module import FlatModule
    from chimera.models.torch_model import TorchModel


class _MicroBatch(NamedTuple):
    """A micro-batch in flight: the state that its backward pass needs."""

    inputs: Tensor
    outputs: Tensor | None  # None if they are recomputed
    targets: NDArray[Any] | None
    weight: float
    seed: int


class TorchStage:
    """Forward and backward passes of micro-batches through the layers of one stage.

    Random numbers of a layer depend on the seed of the micro-batch and on the layer's number in the whole network only, so
    they do not depend on where the network is split.

    Parameters
    ----------
    model, flat : model of the stage, whose module is an ``nn.Sequential``, and its vectors.
    numbers : numbers of the stage's layers in the whole network.
    first : index of the first of these layers in the module.
    recompute : whether to keep only inputs and recompute activations in the backward pass (activation checkpointing, Chen et
        al. 2016).

    Attributes
    ----------
    peak_bytes : peak memory of the activations that autograd saves for the backward pass.
    """

    def __init__(
        self, model: TorchModel, flat: FlatModule, numbers: Sequence[int], first: int = 0, *, recompute: bool = False
    ) -> None:
        self._model, self._flat, self._recompute = model, flat, recompute
        layers = list(model.module.children())[first : first + len(numbers)]
        self._layers = list(zip(numbers, layers, strict=True))
        self._is_first = 0 in numbers  # the network's inputs need no gradient
        self._in_flight: dict[int, _MicroBatch] = {}
        self._kept: dict[int, dict[int, int]] = {}  # by micro-batch: bytes that autograd saves, by address
        self.peak_bytes = 0

    def begin(self) -> None:
        """Begin a step: zero the gradient and drop micro-batches in flight."""
        self._in_flight, self._kept = {}, {}
        self._flat.module.train()
        self._flat.upload()
        self._flat.clear_gradient()

    def forward(
        self, micro: int, inputs: NDArray[Any], seed: int, targets: NDArray[Any] | None = None, weight: float = 1.0
    ) -> NDArray[Any]:
        """Return the activations of a micro-batch or, with its ``targets``, the mean loss, shape ().

        ``weight`` is the micro-batch's share of the batch.
        """
        import torch

        tensor = self._model.tensor_of(inputs)
        if tensor.is_floating_point() and not self._is_first:
            tensor.requires_grad_()
        keep = torch.no_grad() if self._recompute else self._count_saved(micro)
        with keep:
            outputs = self._run_layers(tensor, seed, targets)
        self._in_flight[micro] = _MicroBatch(tensor, None if self._recompute else outputs, targets, weight, seed)
        if self._recompute:
            self._record_memory(micro, tensor)
        return outputs.detach().cpu().numpy()

    def backward(self, micro: int, gradient: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return the gradient of a micro-batch's inputs.

        ``gradient`` is the gradient of the activations that `forward` returned; None if `forward` returned the loss. The result
        is empty if the inputs need no gradient.
        """
        import torch

        passing = self._in_flight.pop(micro)
        outputs = passing.outputs
        if outputs is None:
            seen = (
                self._model.buffers()
            )  # already updated by this micro-batch: recomputation must not update them again
            with self._count_saved(micro):
                outputs = self._run_layers(passing.inputs, passing.seed, passing.targets)
            self._model.load_buffers(seen)
        given = (
            torch.full_like(outputs, passing.weight)
            if gradient is None
            else torch.from_numpy(np.array(gradient)).to(outputs.device)
        )
        outputs.backward(given)  # type: ignore[no-untyped-call]
        self._kept.pop(micro, None)
        back = passing.inputs.grad
        return np.empty(0, np.float32) if back is None else back.cpu().numpy()

    def gradient(self) -> Any:
        """Return the gradient of the step, shape (p,), on the stage's device."""
        return self._flat.device_gradient()

    def _run_layers(self, tensor: Tensor, seed: int, targets: NDArray[Any] | None) -> Tensor:
        for number, layer in self._layers:
            self._model.reseed(seed * 1009 + number)
            before = tuple(tensor.shape)
            try:
                tensor = layer(tensor)
            except Exception as error:
                check_rows(self._model.module, error, before[0])
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

    def _count_saved(self, micro: int) -> Any:
        """Return a context that counts the memory that autograd saves."""
        import torch

        def pack(tensor: Tensor) -> Tensor:
            self._record_memory(micro, tensor)
            return tensor.detach()

        return torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)

    def _record_memory(self, micro: int, tensor: Tensor) -> None:
        memory = tensor.untyped_storage()
        if memory.data_ptr() != self._flat.address():
            self._kept.setdefault(micro, {})[memory.data_ptr()] = memory.nbytes()
            self.peak_bytes = max(self.peak_bytes, sum(sum(kept.values()) for kept in self._kept.values()))

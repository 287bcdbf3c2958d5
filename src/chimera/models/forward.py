"""The forward pass of a torch module on a batch: tensors of its type and device, its precision, its loss and outputs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.batch import Batch, mapped, samples_in
from chimera.core.errors import ConfigurationError, DataError
from chimera.models.compute import Compute
from chimera.models.first_batch import CHECKED, check_loss
from chimera.models.flat_module import FlatModule
from chimera.models.loss import FLOAT32, INT64, Loss, as_tensor
from chimera.models.module_buffers import check_rows
from chimera.models.step import DefaultStep, Outcome, Step, outcome_of, outputs_in, outputs_of

if TYPE_CHECKING:
    from torch import Tensor, nn


def check_forward(module: nn.Module) -> None:
    """Raise ConfigurationError if a module has no method ``forward``, as lists of modules, which only a step can run."""
    from torch import nn

    if type(module).forward is nn.Module.forward and "forward" not in vars(module):
        raise ConfigurationError(
            f"{type(module).__name__} has no method forward: define forward(self, inputs), or give a step, see TorchModel"
        )


class ForwardPass:
    """Computes loss and outputs of batches.

    Parameters
    ----------
    flat : the module.
    loss : the loss if the module or the step returns none.
    step : the user's step, or None.
    target_transform : applied to targets before the loss.
    integer_inputs : whether integer inputs stay integers; None: if the module has an embedding.
    """

    def __init__(
        self,
        flat: FlatModule,
        loss: Loss,
        step: Step | None,
        target_transform: Callable[[Tensor], Tensor] | None,
        *,
        integer_inputs: bool | None,
    ) -> None:
        from torch import nn

        if integer_inputs is None:
            integer_inputs = any(isinstance(part, nn.Embedding | nn.EmbeddingBag) for part in flat.module.modules())
        self.flat, self.loss, self.compute = flat, loss, Compute()
        self.step, self._target_transform, self._integer_inputs = step, target_transform, integer_inputs
        self._compiled: Any = None
        self._is_checked = loss.targets != "any" and loss.name not in CHECKED

    def __call__(self, batch: Batch) -> Outcome:
        """Return loss and outputs.

        Raises
        ------
        DataError : the batch has no rows.
        ConfigurationError : see `DefaultStep` and `outcome_of`.
        """
        is_pair = self.step is None and _is_pair_of_arrays(batch)  # the most frequent case
        if not (len(batch[1]) if is_pair else samples_in(batch)):
            raise DataError("a batch without rows has no loss")
        with self._autocast():
            if is_pair:
                outputs = self.outputs(batch[0])
                return Outcome(self.loss_of(outputs, batch[1]), outputs)
            return self._of_nesting(batch)

    def _of_nesting(self, batch: Batch) -> Outcome:
        placed = mapped(self._leaf, batch)
        if self.step is not None:
            name = getattr(self.step, "__name__", type(self.step).__name__)
            try:
                result = self.step(self._module(), placed)
            except ValueError as error:
                check_rows(self.flat.module, error, samples_in(batch))
                raise
            return outcome_of(result, f"the step {name!r}")
        if isinstance(placed, tuple) and hasattr(placed[0], "shape") and not self._integer_inputs:
            placed = (placed[0].float(), *placed[1:])
        try:
            return DefaultStep(self._loss_of_tensors)(self._module(), placed)
        except Exception as error:
            check_rows(self.flat.module, error, samples_in(batch))
            error.add_note(f"in a step of {type(self.flat.module).__name__} on a batch of type {type(batch).__name__}")
            raise

    @property
    def plain(self) -> bool:
        """Whether the loss is the module's on real inputs and their targets, without a step or a transform of the user."""
        return self.step is None and self._target_transform is None and not self._integer_inputs

    def over(self, flat: FlatModule) -> ForwardPass:
        """Return the same computation with another module, such as a part of the layers."""
        other = copy(self)
        other.flat, other._compiled = flat, None
        return other

    def outputs(self, inputs: Any) -> Tensor:
        """Return the outputs for inputs: an array, or a nesting as in `DefaultStep`."""
        if not isinstance(inputs, np.ndarray):
            return outputs_of(self._module(), mapped(self._leaf, inputs))
        tensor = self.tensor_of(inputs)
        try:
            result = self._module()(tensor)
        except Exception as error:
            shape = tuple(tensor.shape)
            name = type(self.flat.module).__name__
            if self._integer_inputs and inputs.dtype.kind not in "iu" and "Long, Int" in str(error):
                raise ConfigurationError(
                    f"an embedding of {name} needs integers, and the inputs were read as {tensor.dtype}: keep them by "
                    "data=chimera.Split.of(data, keep_integers=True)"
                ) from error
            check_rows(self.flat.module, error, len(tensor))
            error.add_note(f"in the forward pass of {name} on {tensor.dtype} inputs of shape {shape}")
            raise
        outputs: Tensor = (
            result if self.loss.targets == "any" else outputs_in(result)
        )  # a function takes the result itself
        return outputs

    def evaluating(self) -> AbstractContextManager[dict[str, float]]:
        """Return a context around an evaluation; its dictionary then holds the metrics of the step, if it has any."""
        own = getattr(self.step, "evaluating", None)
        return nullcontext({}) if own is None else own(self.flat.module)

    def own_predictions(self, inputs: Any) -> Any:
        """Return the predictions of the step itself; None if it makes none."""
        own = getattr(self.step, "predict", None)
        if own is None:
            return None
        placed = self.tensor_of(inputs) if isinstance(inputs, np.ndarray) else mapped(self._leaf, inputs)
        return own(self.flat.module, placed)

    def tensor_of(self, inputs: NDArray[Any]) -> Tensor:
        """Return inputs as a tensor of the type and on the device that the module needs."""
        whole = self._integer_inputs and inputs.dtype.kind in "iu"
        try:
            return self._placed(as_tensor(inputs, INT64 if whole else FLOAT32))
        except (TypeError, ValueError) as error:
            raise DataError(f"inputs must be numbers, not of type {inputs.dtype}") from error

    def loss_of(self, outputs: Tensor, targets: NDArray[Any]) -> Tensor:
        """Return the mean loss of outputs, as a scalar tensor on their device."""
        wanted = self._placed(self.loss.tensor(targets))
        if self._target_transform is not None:
            wanted = self._target_transform(wanted)
        return self._loss_of_wanted(outputs, wanted)

    def _loss_of_tensors(self, outputs: Tensor, targets: Tensor) -> Tensor:
        wanted = self.loss.cast(targets)
        if self._target_transform is not None:
            wanted = self._target_transform(wanted)
        return self._loss_of_wanted(outputs, wanted)

    def _loss_of_wanted(self, outputs: Tensor, targets: Tensor) -> Tensor:
        loss = self.loss(outputs, targets)
        # An evaluation checks nothing: finished runs of earlier versions are not refused.
        if not self._is_checked and getattr(loss, "requires_grad", True):
            self._is_checked = check_loss(self.loss, outputs, targets, loss)
        return loss

    def _leaf(self, value: Any) -> Tensor:
        """Return a leaf of a batch as a tensor on the module's device; real numbers of double precision become float32."""
        import torch

        tensor = value if isinstance(value, torch.Tensor) else torch.as_tensor(np.array(value))
        return self._placed(tensor.float() if tensor.dtype == torch.float64 else tensor)

    def _placed(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.flat.device) if self.flat.moved else tensor

    def _module(self) -> Any:
        if not self.compute.compile:
            return self.flat.module
        if self._compiled is None:
            import torch

            self._compiled = torch.compile(self.flat.module)
        return self._compiled

    def _autocast(self) -> AbstractContextManager[Any]:
        kind, device = self.compute.autocast, self.flat.device.type
        # The driver evaluates on the CPU, where operations in float16 are slow and some are missing.
        if kind is None or (self.compute.scales and device == "cpu"):
            return nullcontext()
        import torch

        return torch.autocast(device, getattr(torch, kind))

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_compiled": None}  # compiled code cannot be pickled; the next step compiles again


def _is_pair_of_arrays(batch: Batch) -> bool:
    return type(batch) is tuple and len(batch) == 2 and type(batch[0]) is type(batch[1]) is np.ndarray

"""Optimizers of `torch.optim` for one flat vector."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.device import on_host, to_device_of
from chimera.core.errors import ConfigurationError, MissingExtraError, UnknownNameError
from chimera.core.parameters import Flat
from chimera.core.registry import checked_options, load_object
from chimera.core.rows import RowLayout, SparseRows
from chimera.training.optimizers.refusal import refusal

if TYPE_CHECKING:
    from chimera.training.optimizers.optimizer import OptimizerSettings

_TENSOR, _SCALAR = "tensor.", "scalar."
_ROWWISE = "SGD", "Adagrad"
_OF_MATRICES = "Adafactor", "Muon"  # Adafactor takes a step on a flat vector, but another one
_LIBRARIES = "torch.optim.", "transformers."  # whose classes of these names step matrices
_MEAN_SQUARES = "exp_avg_sq", "square_avg"  # state names of Adam and its variants; of RMSprop and Adadelta


class FlatOptimizer:
    """An optimizer of torch that updates one flat vector in place.

    Parameters
    ----------
    settings : settings of the optimizer.
    flat : parameters, float32, shape (P,), writable: an array, which torch views without a copy, or a tensor on a device.
    """

    def __init__(self, settings: OptimizerSettings, flat: Flat) -> None:
        try:
            import torch
        except ImportError as error:
            raise MissingExtraError(f"the optimizer {settings.name!r}", "torch", "train") from error
        avoid_compiler_import()
        self._torch, self._settings, self._flat = torch, settings, flat
        self._parameter = torch.nn.Parameter(torch.as_tensor(flat), requires_grad=False)
        self._on_device = not on_host(flat)
        self._gradient: Flat | None = None
        self._few: FlatOptimizer | None = None  # updates single rows
        kind = _optimizer_class(settings.name)
        # The method without its wrappers, which import the compiler (a second in each new process) and call the profiler.
        self._step = inspect.unwrap(kind.step)
        options = checked_options(f"the optimizer {settings.name!r}", kind, settings.options, {"params": None})
        # Some releases of torch have no fused Adagrad on GPUs, and raise an error in the first step.
        has_kernel = not (self._on_device and kind is torch.optim.Adagrad)
        if has_kernel and "fused" in inspect.signature(kind).parameters and "foreach" not in options:
            options.setdefault("fused", True)  # one pass over the vector instead of several
        try:
            self._optimizer = kind([self._parameter], **options)
        except (TypeError, ValueError, RuntimeError) as error:
            raise refusal(settings.name, settings.options, error) from error
        self._schedule, self._group = settings.schedule, self._optimizer.param_groups[0]
        self._plain, self._max_norm = settings.plain, settings.max_gradient_norm
        self._learning_rate = self._group["lr"]

    def step(self, gradient: Flat, number: int) -> None:
        """Take step ``number`` (from 0) with ``gradient``, shape (P,), writable; one on the host is copied to the device."""
        if self._on_device:
            gradient = to_device_of(gradient, self._flat)
        if self._schedule.changes:
            self._group["lr"] = self._learning_rate * self._schedule.at(number)
        if self._max_norm is not None:
            _clip(gradient, self._max_norm)
        if gradient is not self._gradient:
            self._gradient = gradient
            self._parameter.grad = self._torch.as_tensor(gradient)
        if self._plain:  # the same bits as torch's SGD, whose overhead exceeds the update
            held: Any = self._parameter.grad
            self._parameter.add_(held, alpha=-self._group["lr"])
            return
        with self._torch.no_grad():
            self._step(self._optimizer)

    def step_rows(self, gradient: SparseRows, layout: RowLayout, number: int) -> None:
        """Take step ``number`` (from 0) with a gradient that is zero outside the given rows.

        SGD and Adagrad without momentum and weight decay do not change the other rows, so only the given rows are updated. Any
        other optimizer takes a step with the whole gradient.
        """
        kept = self._optimizer.defaults
        if type(self._optimizer).__name__ in _ROWWISE and not (kept.get("momentum") or kept.get("weight_decay")):
            self._step_only(gradient, layout, number)
        else:
            self.step(layout.filled(gradient), number)

    def _step_only(self, gradient: SparseRows, layout: RowLayout, number: int) -> None:
        flat = layout.gather(self._flat, gradient.numbers)
        if self._few is None:
            self._few = FlatOptimizer(self._settings, flat)
        few = self._few
        few._aim(flat)
        whole = self.state()
        per_element = [key for key, value in whole.items() if value.shape == self._flat.shape]
        few.restore({**whole, **{key: layout.gather(whole[key], gradient.numbers) for key in per_element}})
        few.step(gradient.values, number)
        layout.scatter(SparseRows(gradient.numbers, flat), self._flat)
        for key, value in few.state().items():
            if key in per_element:
                layout.scatter(SparseRows(gradient.numbers, value), whole[key])
            else:
                np.copyto(whole[key], value)

    def _aim(self, flat: Flat) -> None:
        """Update another vector from now on. The object is reused, since creating one takes longer than a step of few rows."""
        self._flat, self._gradient = flat, None
        self._parameter.grad = None
        self._parameter.data = self._torch.from_numpy(flat)

    def curvature(self) -> Flat | None:
        """Return the root of the mean squared gradient, shape (P,), if the optimizer keeps it, as Adam does; else None."""
        held = self._optimizer.state.get(self._parameter, {})
        found = next((held[name] for name in _MEAN_SQUARES if name in held), None)
        return None if found is None else np.sqrt(found.cpu().numpy())

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the optimizer's state as arrays; tensors are returned as views."""
        state = self._optimizer.state.get(self._parameter, {})
        arrays: dict[str, NDArray[Any]] = {}
        for key, value in state.items():
            if isinstance(value, self._torch.Tensor):
                arrays[_TENSOR + key] = value.detach().cpu().numpy()
            elif value is not None:
                arrays[_SCALAR + key] = np.asarray(value)
        return arrays

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore what `state` returned."""
        state: dict[str, Any] = {}
        for key, value in arrays.items():
            kind, name = key[: len(_TENSOR)], key[len(_TENSOR) :]
            state[name] = self._held(np.array(value)) if kind == _TENSOR else value.item()
        if state:
            self._optimizer.state[self._parameter] = state

    def _held(self, array: NDArray[Any]) -> Any:
        """Return a tensor on the right device: the step count stays on the host unless a fused kernel reads it."""
        tensor = self._torch.from_numpy(array)
        on_host = array.ndim == 0 and not self._group.get("fused")
        return tensor if on_host else tensor.to(self._parameter.device)


def _optimizer_class(name: str) -> Any:
    kind = load_object(name) if ":" in name else _named_class(name)
    if getattr(kind, "__name__", None) in _OF_MATRICES and f"{kind.__module__}.".startswith(_LIBRARIES):
        raise ConfigurationError(
            f"the optimizer {name!r} steps matrices, by their rows and columns, but a run steps one flat vector of all "
            "parameters: use 'adamw'"
        )
    return kind


def _named_class(name: str) -> Any:
    import torch

    from chimera.training.optimizers.adaptive import OPTIMIZERS

    classes: dict[str, Any] = {
        kind.__name__.lower(): kind
        for kind in vars(torch.optim).values()
        if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
    } | {kind.__name__.lower(): kind for kind in OPTIMIZERS}
    kind = classes.get(name.lower().replace("-", ""))
    if kind is None:
        raise UnknownNameError("optimizer", name, [*classes, "momentum"])
    return kind


def avoid_compiler_import() -> None:
    """Keep the constructor of `torch.optim.Optimizer` from importing `torch._dynamo`.

    Each of its methods has an attribute with a variant that the compiler skips, and imports the compiler only to create it.
    Here each method is its own variant. In releases of torch that work differently, this has no effect.
    """
    from torch.optim import Optimizer

    for method in vars(Optimizer).values():
        plain = getattr(method, "__wrapped__", None)
        if plain is not None and not hasattr(plain, "__dynamo_disable"):
            plain.__dynamo_disable = plain


def _clip(gradient: Any, max_norm: float) -> None:
    """Scale a gradient, an array or a tensor of shape (P,), to a norm of at most ``max_norm``, in place, as torch does."""
    norm = math.sqrt(float(gradient @ gradient))
    if norm > max_norm:
        gradient *= max_norm / (norm + 1e-6)

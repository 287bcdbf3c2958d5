"""Any `torch.optim` optimizer, over one flat vector."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError, MissingExtraError, UnknownNameError
from chimera.core.parameters import Flat
from chimera.core.registry import checked_options, load_object
from chimera.core.rows import RowLayout, SparseRows
from chimera.training.optimizers.plain_sgd import PlainSGD
from chimera.training.optimizers.schedule import Schedule

_TENSOR, _SCALAR = "tensor.", "scalar."
_ROWWISE = "SGD", "Adagrad"
_TORCHS_RATE = 1e-3  # of SGD without an option
_MEAN_SQUARES = "exp_avg_sq", "square_avg"  # what Adam and its kin, and RMSprop and Adadelta, call it


@dataclass(frozen=True)
class OptimizerSettings:
    """Which optimizer, as it travels to servers and workers.

    Attributes
    ----------
    name : a class of `torch.optim`, in any case: ``sgd``, ``adam``, ``AdamW``, ...; ``momentum``, which is SGD with a momentum
        of 0.9; ``yogi``; or a class of one's own as ``package.module:Class``.
    options : its keyword arguments.
    schedule : how its learning rate changes over the run.
    """

    name: str = "sgd"
    options: Mapping[str, Any] = field(default_factory=dict)
    schedule: Schedule = field(default_factory=Schedule)

    @classmethod
    def of(cls, name: str, options: Mapping[str, Any], learning_rate: float | None = None) -> Self:
        """Return the settings of an experiment, whose options may have a ``schedule``.

        ``learning_rate`` is that of SGD where the options have none: torch's own is too small for any use.
        """
        given = dict(options)
        if name.lower() == "momentum":
            name, given = "sgd", {"momentum": 0.9, **given}
        schedule = Schedule.of(given.pop("schedule", "constant"))
        if name.lower() == "sgd" and learning_rate is not None:
            given.setdefault("lr", learning_rate)
        return cls(name, given, schedule)

    def over(self, steps: int | None) -> Self:
        """Return the same for a run of so many steps.

        Raises
        ------
        ConfigurationError : the learning rate is to change, and nobody knows how many steps the run has.
        """
        if steps is None and self.schedule.needs_steps:
            raise ConfigurationError(
                f"the schedule of the optimizer {self.name!r} needs the length of the run in steps: give it rounds, "
                "or epochs where the driver has the data"
            )
        return replace(self, schedule=replace(self.schedule, steps=steps))

    @property
    def plain(self) -> bool:
        """Whether it is SGD without anything else, which remembers nothing."""
        return self.name.lower() == "sgd" and set(self.options) <= {"lr"}

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of a step of plain SGD."""
        return float(self.options.get("lr", _TORCHS_RATE)) * self.schedule.factor(step)

    def stepper(self, flat: Flat) -> Stepper:
        """Return what steps ``flat`` in place. Plain SGD needs no torch."""
        if self.plain and find_spec("torch") is None:
            return PlainSGD(flat, self.learning_rate)
        return FlatOptimizer(self, flat)

    def check(self) -> None:
        """Make one on a single parameter and step it, so that a mistake shows before anything runs."""
        optimizer = self.stepper(np.zeros(1, np.float32))
        try:
            optimizer.step(np.zeros(1, np.float32), 0)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ConfigurationError(f"the optimizer {self.name!r} cannot step a flat dense vector: {error}") from error


class Stepper(Protocol):
    """Steps one flat vector in place."""

    def step(self, gradient: Flat, number: int) -> None:
        """Take one step with ``gradient``, shape (P,), writable; ``number`` were taken before."""

    def step_rows(self, gradient: SparseRows, layout: RowLayout, number: int) -> None:
        """Take one step with a gradient that is zero in all other rows; ``layout`` says where these lie."""

    def curvature(self) -> Flat | None:
        """Return an estimate of the diagonal of the loss's curvature, shape (P,), if it has one."""

    def state(self) -> dict[str, NDArray[Any]]:
        """Return all that it remembers, as arrays."""

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take back what `state` returned."""


class MakesStepper(Protocol):
    """Settings, as they travel to a server: `OptimizerSettings`, or others that need no torch."""

    def stepper(self, flat: Flat) -> Stepper:
        """Return what steps ``flat``, shape (P,), in place."""


class FlatOptimizer:
    """Steps one flat vector in place.

    Parameters
    ----------
    settings : which optimizer.
    flat : the parameters, float32, shape (P,), writable: an array, whose memory torch views, or a tensor on a device.
    """

    def __init__(self, settings: OptimizerSettings, flat: Flat) -> None:
        try:
            import torch
        except ImportError as error:
            raise MissingExtraError(f"the optimizer {settings.name!r}", "torch", "train") from error
        _avoid_compiler_import()
        self._torch, self._settings, self._flat = torch, settings, flat
        self._parameter = torch.nn.Parameter(torch.as_tensor(flat), requires_grad=False)
        self._gradient: Flat | None = None
        self._few: FlatOptimizer | None = None  # that steps some rows
        kind = _optimizer_class(settings.name)
        # The method itself, without the wrappers that import the compiler (a second in every fresh process) and call the
        # profiler: neither has a purpose here.
        self._step = inspect.unwrap(kind.step)
        options = checked_options(f"the optimizer {settings.name!r}", kind, settings.options, {"params": None})
        if "fused" in inspect.signature(kind).parameters and "foreach" not in options:
            options.setdefault("fused", True)  # one pass over the vector; the default makes several
        try:
            self._optimizer = kind([self._parameter], **options)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ConfigurationError(f"the optimizer {settings.name!r} refuses its options: {error}") from error
        self._schedule, self._group = settings.schedule, self._optimizer.param_groups[0]
        self._plain = settings.plain
        self._learning_rate = self._group["lr"]

    def step(self, gradient: Flat, number: int) -> None:
        """Take one step with ``gradient``, shape (P,), writable; ``number``, of those taken before, decides the rate."""
        if self._schedule.changes:
            self._group["lr"] = self._learning_rate * self._schedule.factor(number)
        if gradient is not self._gradient:
            self._gradient = gradient
            self._parameter.grad = self._torch.as_tensor(gradient)
        if self._plain:  # torch's way to the same bits takes longer than the sum itself
            held: Any = self._parameter.grad
            self._parameter.add_(held, alpha=-self._group["lr"])
            return
        with self._torch.no_grad():
            self._step(self._optimizer)

    def step_rows(self, gradient: SparseRows, layout: RowLayout, number: int) -> None:
        """Take one step with a gradient that is zero in all other rows.

        SGD and Adagrad without momentum and weight decay leave those rows alone, so only these rows are stepped, with what is
        remembered of them. Any other optimizer gets the whole gradient.
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
        """Step another vector from now on; one of these is made once, since making it takes longer than a step of few rows."""
        self._flat, self._gradient = flat, None
        self._parameter.grad = None
        self._parameter.data = self._torch.from_numpy(flat)

    def curvature(self) -> Flat | None:
        """Return the root of the mean square of the gradients, shape (P,), where the optimizer keeps one, as Adam does."""
        held = self._optimizer.state.get(self._parameter, {})
        found = next((held[name] for name in _MEAN_SQUARES if name in held), None)
        return None if found is None else np.sqrt(found.cpu().numpy())

    def state(self) -> dict[str, NDArray[Any]]:
        """Return all that it remembers, as arrays; views where it is a tensor."""
        state = self._optimizer.state.get(self._parameter, {})
        arrays: dict[str, NDArray[Any]] = {}
        for key, value in state.items():
            if isinstance(value, self._torch.Tensor):
                arrays[_TENSOR + key] = value.detach().cpu().numpy()
            elif value is not None:
                arrays[_SCALAR + key] = np.asarray(value)
        return arrays

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take back what `state` returned."""
        state: dict[str, Any] = {}
        for key, value in arrays.items():
            kind, name = key[: len(_TENSOR)], key[len(_TENSOR) :]
            state[name] = self._held(np.array(value)) if kind == _TENSOR else value.item()
        if state:
            self._optimizer.state[self._parameter] = state

    def _held(self, array: NDArray[Any]) -> Any:
        """Return a tensor where the optimizer wants it: its count of steps stays on the host unless a fused kernel reads it."""
        tensor = self._torch.from_numpy(array)
        on_host = array.ndim == 0 and not self._group.get("fused")
        return tensor if on_host else tensor.to(self._parameter.device)


def _optimizer_class(name: str) -> Any:
    if ":" in name:
        return load_object(name)
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


def _avoid_compiler_import() -> None:
    """Keep the constructor of `torch.optim.Optimizer` from importing `torch._dynamo`.

    Its methods look on themselves for a twin that the compiler skips, and import the compiler only to make one; here each
    is its own twin. Where a release of torch works otherwise, this changes nothing.
    """
    from torch.optim import Optimizer

    for method in vars(Optimizer).values():
        plain = getattr(method, "__wrapped__", None)
        if plain is not None and not hasattr(plain, "__dynamo_disable"):
            plain.__dynamo_disable = plain

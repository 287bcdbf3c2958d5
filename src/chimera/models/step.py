"""One step of any torch module on any batch: arguments of its forward pass, its loss and its outputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from chimera.core.batch import TARGET_KEYS, Batch, inputs_of, target_key, targets_of
from chimera.core.errors import ConfigurationError

if TYPE_CHECKING:
    from torch import Tensor, nn

Step: TypeAlias = "Callable[[nn.Module, Any], Any]"
"""``step(module, batch)`` returns the mean loss, ``(loss, outputs)``, or a mapping with ``loss`` and ``logits``.

A step that is an object may have more methods, see `chimera.models.lightning.step.LightningStep`: ``evaluating(module)``, a
context whose dictionary gets further metrics of the evaluation; ``predict(module, inputs)``; ``locate(position)``; and
``own_optimizer(module, length)``. Its ``notice`` is a line for the user. Its ``whole`` is set if it calls other methods
of the module than ``forward``; it then needs the module itself, not its layers or a compiled module.
"""


class Outcome(NamedTuple):
    """The mean loss of a batch, a scalar tensor, and the outputs of the module, or None."""

    loss: Tensor
    outputs: Any


def outcome_of(result: Any, source: str) -> Outcome:
    """Return loss and outputs in the result of a step; ``source`` names the step in messages.

    Raises
    ------
    ConfigurationError : it holds no loss.
    """
    found = found_in(result)
    if found is None:
        raise ConfigurationError(
            f"{source} returned {type(result).__name__} without a loss: return a scalar tensor, (loss, outputs), or a mapping "
            "with 'loss'"
        )
    return found


def found_in(result: Any) -> Outcome | None:
    """Return loss and outputs in the result of a step; None if it holds no loss."""
    if hasattr(result, "backward"):
        return Outcome(result, None)
    if isinstance(result, tuple | list) and len(result) == 2 and hasattr(result[0], "backward"):
        return Outcome(*result)
    loss = _entry(result, "loss")
    return Outcome(loss, outputs_in(result)) if hasattr(loss, "backward") else None


class DefaultStep:
    """The step of a module without its own step.

    - ``(inputs, targets)``: ``loss(module(inputs), targets)``. Inputs that are a tuple or list are the arguments of the module,
      inputs that are a mapping its keywords. In ``(a, b, targets)`` all parts but the last are arguments.
    - A mapping: ``module(**batch)``. If the result has a ``loss``, this is the loss, and its ``logits`` are the outputs.
      Otherwise the loss is that of the outputs and the targets (see `TARGET_KEYS`). Targets are passed to the module only if
      its ``forward`` has a parameter of their name. A single input of another name than the parameter is passed by position.

    Parameters
    ----------
    loss : computes the mean loss of outputs and targets, tensors.
    """

    def __init__(self, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        self._loss = loss

    def __call__(self, module: nn.Module, batch: Batch) -> Outcome:
        """Return loss and outputs.

        Raises
        ------
        ConfigurationError : the batch has no targets, and the module returns no loss.
        """
        result = self.forward(module, batch)
        loss = _entry(result, "loss")
        if hasattr(loss, "backward"):
            return Outcome(loss, outputs_in(result))
        outputs, targets = outputs_in(result), targets_of(batch)
        if targets is None:
            raise ConfigurationError(
                f"{type(module).__name__} returned no loss, and the batch ({_described(batch)}) has no targets: give "
                "(inputs, targets), a mapping with 'labels', or a step of your own"
            )
        return Outcome(self._loss(outputs, targets), outputs)

    def forward(self, module: nn.Module, batch: Batch) -> Any:
        """Return the result of the module for the inputs of a batch."""
        inputs = inputs_of(batch)
        if inputs is not batch:
            return _called(module, inputs)
        if isinstance(batch, Mapping):
            key = target_key(batch)
            given = dict(batch)
            if key is not None and not _accepts(module, key):
                del given[key]
            if len(given) == 1 and not _accepts(module, *given):
                return module(*given.values())
            try:
                return module(**given)
            except TypeError as error:
                unknown = next((name for name in given if not _accepts(module, name)), None)
                if unknown is None:
                    raise
                advice = "leave this column out of the samples, or give a step of your own"
                if key is None:
                    advice += f"; targets need one of the names {', '.join(TARGET_KEYS)}"
                raise ConfigurationError(
                    f"{type(module).__name__}.forward has no parameter {unknown!r}: {advice}"
                ) from error
        try:
            return module(batch)
        except TypeError as error:
            if hasattr(batch, "shape"):
                raise
            name = type(batch).__name__
            raise ConfigurationError(
                f"{type(module).__name__}.forward got a batch of type {name}, whose inputs are not known: give (inputs, "
                "targets), a mapping, or a step of your own"
            ) from error


def outputs_of(module: nn.Module, inputs: Any) -> Tensor:
    """Return the outputs of a module for inputs without targets."""
    outputs: Tensor = outputs_in(_called(module, inputs))
    return outputs


def _called(module: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, tuple | list):
        try:
            return module(*inputs)
        except TypeError as error:
            if _takes(module, len(inputs)):
                raise
            raise ConfigurationError(
                f"{type(module).__name__}.forward does not take {len(inputs)} arguments, all parts of a sample but the last: "
                "leave parts out of the samples, or give a step of your own"
            ) from error
    return module(**inputs) if isinstance(inputs, Mapping) else module(inputs)


def _takes(module: nn.Module, count: int) -> bool:
    try:
        inspect.signature(module.forward).bind(*range(count))
    except TypeError:
        return False
    return True


def _accepts(module: nn.Module, key: str) -> bool:
    parameters = inspect.signature(module.forward).parameters
    return key in parameters or any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())


def _entry(result: Any, key: str) -> Any:
    return result.get(key) if isinstance(result, Mapping) else getattr(result, key, None)


def outputs_in(result: Any) -> Any:
    """Return the tensor of outputs: ``logits`` or ``outputs`` of a mapping or an object, or the result itself."""
    if hasattr(result, "backward"):  # a tensor, as in most steps: save the look-ups
        return result
    for key in ("logits", "outputs"):
        if (found := _entry(result, key)) is not None:
            return found
    return result


def _described(batch: Batch) -> str:
    if isinstance(batch, Mapping):
        return f"a mapping with {', '.join(map(repr, batch))}"
    return f"of type {type(batch).__name__}"

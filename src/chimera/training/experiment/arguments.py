"""The arguments of `Trainer`: their names, their types, and values of these types."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np

from chimera.core.errors import ConfigurationError
from chimera.core.validation_message import validation_message

_SCALARS = (bool, int, float, str, type(None))


@functools.cache
def arguments() -> Mapping[str, inspect.Parameter]:
    """Return the parameters of `Trainer` by name."""
    from chimera.training.trainer import Trainer

    return inspect.signature(Trainer).parameters


@functools.cache
def hint_of(name: str) -> Any:
    """Return the type of an argument; `Any` if it has none, or one that only a type checker can see."""
    from chimera.training import trainer

    annotation = arguments()[name].annotation
    if not isinstance(annotation, str):
        return Any if annotation is inspect.Parameter.empty else annotation
    try:  # one annotation at a time: get_type_hints fails as a whole if one name is imported for type checkers only
        holder = SimpleNamespace(__annotations__={"it": annotation})
        return typing.get_type_hints(holder, vars(trainer), include_extras=True)["it"]
    except NameError:
        return Any


def converted(name: str, value: Any) -> Any:
    """Return the value of an argument in its type, with Python numbers for NumPy scalars, and integers for floats such as 1e9.

    Raises
    ------
    msgspec.ValidationError : the value has another type.
    TypeError : the type is one for which msgspec has no rule.
    """
    hint = hint_of(name)
    plain = _plain(value)
    if isinstance(plain, float) and plain.is_integer() and int in _parts(hint) and float not in _parts(hint):
        plain = int(plain)
    return msgspec.convert(plain, hint)


def checked_scalars(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return these arguments, with those that are numbers, texts or switches converted; the others are checked where used.

    For a switch, 0 and 1 are false and true, as elsewhere in Python.

    Raises
    ------
    ConfigurationError : an argument has another type than its annotation.
    """
    checked = dict(given)
    for name, value in given.items():
        hint = hint_of(name)
        if not _parts(hint) <= set(_SCALARS):
            continue
        try:
            switch = hint is bool and isinstance(value, int | np.integer) and value in (0, 1)
            checked[name] = converted(name, bool(value) if switch else value)
        except msgspec.ValidationError as error:
            raise ConfigurationError(f"{name} = {value!r} cannot be used: {validation_message(error, hint)}") from None
    return checked


def _parts(hint: Any) -> set[Any]:
    """Return the types of a union, or the type itself."""
    return set(typing.get_args(hint)) if isinstance(hint, types.UnionType) else {hint}


def _plain(value: Any) -> Any:
    """Return ``value`` with NumPy scalars replaced by Python numbers."""
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    return value.item() if isinstance(value, np.generic) else value

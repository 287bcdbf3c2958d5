"""Conversion of tables of an experiment file to the frozen dataclasses of the engine."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from chimera.core.errors import ConfigurationError
from chimera.core.registry import Registry
from chimera.core.validation_message import validation_message

T = TypeVar("T")


def options(kind: type[T], given: T | Mapping[str, Any] | None, where: str) -> T:
    """Return ``given`` as a ``kind``: itself, converted from a table, or the defaults for None.

    Raises
    ------
    ConfigurationError : a key is unknown or a value cannot be used; ``where`` names the table.
    """
    if given is None:
        return kind()
    if isinstance(given, kind):
        return given
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"{where}: {given!r} cannot be used: give a table, or a {kind.__name__}")
    table = {key: _plain(value) for key, value in given.items()}
    _refuse_unknown_keys(kind, table, where)
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{where}: {validation_message(error, kind)}") from error


def named_option(registry: Registry[T], given: Any, kind: Any) -> T:
    """Return a registered object: ``given`` itself, or the one that a name, or a table with a name and options, describes."""
    if isinstance(given, kind):
        return given  # type: ignore[no-any-return]  # of this kind
    if isinstance(given, str):
        return registry.create(given)
    if not isinstance(given, Mapping) or not isinstance(given.get("name"), str):
        raise ConfigurationError(f"a {registry.kind} is a name or a table with a name, not {given!r}")
    return registry.create(given["name"], {key: value for key, value in given.items() if key != "name"})


def check_range(name: str, value: float, *, above_zero: bool = False) -> None:
    """Raise ConfigurationError unless ``value`` is at least zero (or above zero, with ``above_zero``)."""
    if not (value > 0 if above_zero else value >= 0):  # NaN fails both
        raise ConfigurationError(f"{name} = {value!r} must be {'above zero' if above_zero else 'zero or more'}")


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: part for name, part in dataclasses.asdict(value).items() if part is not None}
    return {key: _plain(part) for key, part in value.items()} if isinstance(value, Mapping) else value


def _refuse_unknown_keys(kind: type[Any], table: Mapping[str, Any], where: str) -> None:
    hints = typing.get_type_hints(kind)
    for key, value in table.items():
        if key not in hints:
            raise ConfigurationError(f"{where} has no key {key!r}; its keys: {', '.join(hints)}")
        inner = (typing.get_args(hints[key]) or (None,))[-1]
        if isinstance(inner, type) and dataclasses.is_dataclass(inner) and isinstance(value, Mapping):
            for name, part in value.items():
                if isinstance(part, Mapping):
                    _refuse_unknown_keys(inner, part, f"{where}, {key} {name!r}")

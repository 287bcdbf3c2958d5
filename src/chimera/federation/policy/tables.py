"""Conversion of tables of a TOML file or of a message to dataclasses, with errors that name the known keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar

import msgspec

from chimera.core.errors import ConfigurationError, did_you_mean
from chimera.core.validation_message import validation_message

T = TypeVar("T")


def checked_keys(given: Any, known: tuple[str, ...], where: str) -> Mapping[str, Any]:
    """Return a table; raise ConfigurationError if the value is no table, or has a key that is not in ``known``."""
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"{where} is a table, not {given!r:.40}")
    for key in given:
        if key not in known:
            raise ConfigurationError(
                f"{where} has no key {key!r:.40}{did_you_mean(key, known)} keys: {', '.join(known)}"
            )
    return given


def converted(kind: type[T], given: Any, where: str) -> T:
    """Return a dataclass from a table; ``where`` names the table for errors.

    Raises
    ------
    ConfigurationError : a key is unknown or missing, or a value has the wrong type or is out of range.
    """
    known = tuple(field.name for field in fields(kind))  # type: ignore[arg-type]
    table = checked_keys(given, known, where)
    for field in fields(kind):  # type: ignore[arg-type]
        if field.name not in table and field.default is MISSING and field.default_factory is MISSING:
            raise ConfigurationError(f"{where} has no {field.name}")
    try:
        return msgspec.convert(dict(table), kind)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, ConfigurationError):
            raise error.__cause__ from None
        raise ConfigurationError(f"{where}: {validation_message(error, kind)}") from None

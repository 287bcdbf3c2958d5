"""A check, before workers start, that a model can be pickled, with an error that names the attribute that fails."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from chimera.core.errors import ConfigurationError
from chimera.core.pickling import pickled_by_value
from chimera.models.instantiation import first_line

_DEPTH = 8  # levels of attributes to search for the one that fails


def ensure_picklable(model: Any) -> None:
    """Pickle a model, or another object that is sent to workers, as the engines do, to check that they can.

    Raises
    ------
    ConfigurationError : pickling fails; one line names the attribute that cannot be pickled.
    """
    error = _failure(model)
    if error is None:
        return
    what = getattr(model, "module", getattr(model, "estimator", model))
    where, reason = _find_unpicklable(what, "", _DEPTH) or _find_unpicklable(model, "", _DEPTH) or ("", error)
    known = re.sub(r"^\.(_\w+\.)*", "", where)  # without the adapter's own attributes around the user's
    place = f"its attribute {known!r}" if where else "it"
    raise ConfigurationError(
        f"{type(what).__name__} cannot be sent to workers: {place} cannot be pickled ({first_line(reason)}); "
        "make it inside the method that uses it, or leave it out in __getstate__"
    ) from error


def _failure(value: Any) -> Exception | None:
    """Return the exception that pickling raises, if any. Pickling runs code of the value, so any type is possible."""
    try:
        pickled_by_value(value)
    except Exception as error:
        return error
    return None


def _find_unpicklable(value: Any, path: str, depth: int) -> tuple[str, Exception] | None:
    """Return the path of the innermost part of ``value`` that cannot be pickled, and the exception."""
    for place, part in _parts(value):
        error = _failure(part)
        if error is not None:
            inner = _find_unpicklable(part, path + place, depth - 1) if depth else None
            return inner or (path + place, error)
    return None


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, part in value.items():
            yield f"[{key!r}]", part
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            yield f"[{index}]", part
    elif not isinstance(value, type) and hasattr(value, "__dict__"):
        for name, part in vars(value).items():
            if name == "_modules" and isinstance(part, dict):  # torch's submodules, which users access as attributes
                yield from ((f".{child}", module) for child, module in part.items())
            elif name != "_parameters":
                yield f".{name}", part

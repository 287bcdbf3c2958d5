"""Finding out, before any worker is started, whether a model can be sent to one, and what keeps it from being sent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from chimera.core.errors import ConfigurationError
from chimera.core.pickling import pickled_by_value
from chimera.models.construction import first_line

_DEPTH = 8  # how far down to look for the culprit


def ensure_picklable(model: Any) -> None:
    """Try to pickle a model, or whatever else goes to workers, as the engines do.

    Raises
    ------
    ConfigurationError : it cannot be pickled; one line that names the attribute at fault.
    """
    error = _failure(model)
    if error is None:
        return
    what = getattr(model, "module", getattr(model, "estimator", model))
    where, reason = _culprit(what, "", _DEPTH) or _culprit(model, "", _DEPTH) or ("", error)
    place = f"its attribute {where.lstrip('.')!r}" if where else "it"
    raise ConfigurationError(
        f"{type(what).__name__} cannot be sent to workers: {place} cannot be pickled ({first_line(reason)}); "
        "make it inside the method that uses it, or leave it out in __getstate__"
    ) from error


def _failure(value: Any) -> Exception | None:
    """Return what pickling raises; code of the value's own runs in it, so it may be anything."""
    try:
        pickled_by_value(value)
    except Exception as error:
        return error
    return None


def _culprit(value: Any, path: str, depth: int) -> tuple[str, Exception] | None:
    """Return the path of the innermost part of ``value`` that cannot be pickled, and what pickling it raises."""
    for place, part in _parts(value):
        error = _failure(part)
        if error is not None:
            inner = _culprit(part, path + place, depth - 1) if depth else None
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
            if name == "_modules" and isinstance(part, dict):  # torch's submodules, which people reach as attributes
                yield from ((f".{child}", module) for child, module in part.items())
            elif name != "_parameters":
                yield f".{name}", part

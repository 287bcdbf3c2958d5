"""The settings of a run that a driver declares to nodes which decide by them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from chimera.core.engine import Engine
from chimera.training.experiment.settings import Settings
from chimera.training.plugin import label, named

_MANY_ROUNDS = 10_000_000  # a budget of epochs or seconds has no number of rounds that the driver knows


def declare(engine: Engine, settings: Settings, model: Any) -> None:
    """Give the settings to an engine whose nodes decide by them; other engines have no method ``declare``.

    Parameters
    ----------
    model : the table or name of the model, or an object, of which only the name is declared.
    """
    given = getattr(engine, "declare", None)
    if given is not None:
        rounds = settings.rounds(None)
        given(
            {
                "strategy": _table(settings.table["strategy"]),
                "model": _table(model),
                "rounds": rounds if rounds is not None and math.isfinite(rounds) else _MANY_ROUNDS,
                "nodes": settings.workers,
                "privacy": settings.table["privacy"],
            }
        )


def _table(plugin: Any) -> dict[str, Any]:
    """Return name and plain options of a plug-in."""
    if not isinstance(plugin, str | Mapping):
        return {"name": label(plugin)}
    name, options = named(plugin)
    return {"name": name, **{key: _plain(value) for key, value in options.items()}}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, str | int | float | bool) else label(value)

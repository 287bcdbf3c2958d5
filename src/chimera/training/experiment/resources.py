"""Resources of workers and servers, as an experiment states them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from chimera.core.engine import Resources
from chimera.core.errors import ConfigurationError
from chimera.core.validation_message import validation_message

GivenResources: TypeAlias = Mapping[str, Any] | Resources | None


def resources_of(what: str, given: GivenResources) -> Resources:
    """Return the `Resources` that a table describes; ``what`` is the option's name in messages.

    Raises
    ------
    ConfigurationError : an unknown key, or a value that cannot be used.
    """
    if not isinstance(given, Mapping | Resources | None):
        raise ConfigurationError(f"{what} = {given!r} cannot be used: give a table with {_KEYS}")
    table = dataclasses.asdict(given) if isinstance(given, Resources) else dict(given or {})
    for key in table:
        if key not in _FIELDS:
            raise ConfigurationError(f"{what} has no key {key!r}; its keys: {_KEYS}")
    try:
        made = msgspec.convert(table, Resources)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{what}: {validation_message(error, Resources)}") from error
    if made.threads < 1:
        raise ConfigurationError(f"{what}: threads must be at least 1, not {made.threads}")
    _check_gpus(what, made.gpus)
    if made.memory_mb is not None and not 0 < made.memory_mb < float("inf"):
        raise ConfigurationError(f"{what}: memory_mb must be above 0 and finite, not {made.memory_mb}")
    for name, amount in made.custom.items():
        if name in _OURS:
            raise ConfigurationError(f"{what}: {name!r} is not a custom resource: set {_OURS[name]}")
        if not 0 < amount < float("inf"):
            raise ConfigurationError(f"{what}: {name!r} must be above 0 and finite, not {amount}")
    return made


def server_resources_of(given: GivenResources) -> Resources:
    """Return the `Resources` of a server. Servers use no GPU.

    Raises
    ------
    ConfigurationError : as in `resources_of`; also if ``gpus`` is not 0.
    """
    made = resources_of("server_resources", given)
    if made.gpus:
        raise ConfigurationError(f"server_resources: gpus must be 0, not {made.gpus:g}: servers compute on the CPU")
    return made


def resources_table(given: GivenResources) -> dict[str, Any] | None:
    """Return the table of an experiment file; None if the option is not set."""
    if isinstance(given, Resources):
        return dataclasses.asdict(given)
    return None if given is None else dict(given)


def _check_gpus(what: str, gpus: float) -> None:
    if not 0 <= gpus < float("inf"):
        raise ConfigurationError(f"{what}: gpus must be at least 0, not {gpus}")
    if gpus > 1 and gpus != int(gpus):
        raise ConfigurationError(f"{what}: gpus must be a fraction of one or a whole number, not {gpus:g}")


_OURS = {"CPU": "threads", "GPU": "gpus", "memory": "memory_mb"}  # Ray's names
_FIELDS = [field.name for field in dataclasses.fields(Resources)]
_KEYS = ", ".join(_FIELDS)

"""Strategies and models that a policy allows, with bounds on their options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chimera.core.errors import ConfigurationError, did_you_mean
from chimera.core.registry import registered_names_only
from chimera.core.signatures import parameters_of
from chimera.federation.policy.bounds import Bound
from chimera.federation.policy.rules import STRATEGIES as CALLS
from chimera.models.conversion import ADAPTER_OPTIONS
from chimera.models.model import MODELS
from chimera.strategies.strategy import STRATEGIES

_EMPTY = inspect.Parameter.empty


@dataclass(frozen=True)
class AllowedStrategy:
    """A strategy that runs may use.

    Attributes
    ----------
    bounds : the allowed values of options, by name. A run must leave out all other options.
    defaults : values of the options that a run leaves out.
    private : whether its updates can leave with noise and masks.
    """

    bounds: Mapping[str, Bound] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    private: bool = False


@dataclass(frozen=True)
class AllowedModel:
    """A model that runs may use.

    Attributes
    ----------
    bounds, defaults : as of `AllowedStrategy`.
    folder : the folder that holds the model, if the administrator has put it at the node; None: a model of Chimera.
    """

    bounds: Mapping[str, Bound] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None


def strategies_of(tables: Any) -> dict[str, AllowedStrategy]:
    """Return the allowed strategies of the table ``[strategies]``.

    Raises
    ------
    ConfigurationError : a strategy is unknown or cannot run on nodes, or an option is unknown or has no valid bound.
    """
    found = {}
    for name, table in _tables(tables, "strategies").items():
        with registered_names_only("a policy"):
            factory = STRATEGIES.find(name).factory
        if name not in CALLS:
            raise ConfigurationError(
                f"strategy {name!r} does not run on nodes; such strategies: {', '.join(sorted(CALLS))}"
            )
        bounds, defaults = _bounds(f"[strategies.{name}]", factory, table)
        found[name] = AllowedStrategy(bounds, defaults, bool(getattr(factory, "private", False)))
    return found


def models_of(tables: Any, folder: Path) -> dict[str, AllowedModel]:
    """Return the allowed models of the table ``[models]``; ``folder`` is where relative folders start.

    Raises
    ------
    ConfigurationError : a model or folder is unknown, or an option is unknown or has no valid bound.
    """
    found = {}
    for name, table in _tables(tables, "models").items():
        where = f"[models.{name}]"
        if "folder" in table:
            place = _place(where, table["folder"], folder)
            bounds = {option: value for option, value in table.items() if option != "folder"}
            found[name] = AllowedModel(_bounds(where, lambda: None, bounds, ADAPTER_OPTIONS)[0], folder=place)
            continue
        with registered_names_only("a policy", "use a registered name, or name a folder: folder = PATH"):
            factory = MODELS.find(name).factory
        found[name] = AllowedModel(*_bounds(where, factory, table, ADAPTER_OPTIONS))
    return found


def why_not(
    what: str,
    name: str,
    options: Mapping[str, Any],
    allowed: Mapping[str, AllowedStrategy] | Mapping[str, AllowedModel],
) -> str | None:
    """Return why a strategy or model with these options is not allowed; None if it is.

    Parameters
    ----------
    what : ``strategy`` or ``model``.
    """
    if name not in allowed:
        return f"the {what} is not allowed here"
    one = allowed[name]
    for option, value in options.items():
        if option not in one.bounds:
            return f"the option {option!r:.60} of the {what} is not allowed here: leave it out"
        if not one.bounds[option].allows(value):
            return f"the option {option!r:.60} of the {what} must be {one.bounds[option]}"
    for option, bound in one.bounds.items():
        if option not in options and option in one.defaults and not bound.allows(one.defaults[option]):
            return f"the option {option!r:.60} of the {what} must be {bound}; its default is not"
    return None


def _tables(tables: Any, key: str) -> Mapping[str, Mapping[str, Any]]:
    if not isinstance(tables, Mapping) or not all(isinstance(table, Mapping) for table in tables.values()):
        raise ConfigurationError(f"[{key}] has one table for each name, such as [{key}.NAME]")
    return tables


def _place(where: str, given: Any, folder: Path) -> Path:
    """Return the folder of a model."""
    place = folder / Path(given).expanduser() if isinstance(given, str) else None
    if place is None or not place.is_dir():
        raise ConfigurationError(f"{where}: there is no folder {str(given if place is None else place)!r:.300}")
    return place


def _bounds(
    where: str, factory: Callable[..., Any], table: Mapping[str, Any], more: Collection[str] = ()
) -> tuple[dict[str, Bound], dict[str, Any]]:
    """Return the bounds in a table, and the defaults of the plug-in's options; ``more`` are options of no factory."""
    parameters = parameters_of(factory)
    open_ended = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    known = [*parameters, *(option for option in more if option not in parameters)]
    for option in table:
        if option not in known and not open_ended:
            raise ConfigurationError(
                f"{where} has no option {option!r:.60}{did_you_mean(option, known)} options: {', '.join(known)}"
            )
    defaults = {option: each.default for option, each in parameters.items() if each.default is not _EMPTY}
    return {option: Bound.of(value, f"{where}, option {option}") for option, value in table.items()}, defaults

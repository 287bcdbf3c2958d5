"""Validation of an experiment before anything is loaded, also where its code and packages are not installed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from chimera.core.engine import ENGINES
from chimera.core.errors import CodeRefusedError, ConfigurationError, MissingExtraError, did_you_mean
from chimera.core.registry import Registry, checked_options, registered_names_only
from chimera.core.signatures import parameters_of
from chimera.data.split import DATASETS
from chimera.models.conversion import ADAPTER_OPTIONS
from chimera.models.model import MODELS
from chimera.training.experiment.experiment import Experiment
from chimera.training.plugin import named


def check(experiment: Experiment) -> None:
    """Raise the errors of names, options and values that `Experiment.trainer` and its `fit` would raise for any data.

    User code is not imported. Plug-ins named by path, and plug-ins whose packages are missing here, are not checked: they may
    be installed where the experiment runs.

    Raises
    ------
    ConfigurationError : a part of the experiment cannot be used.
    """
    tables = experiment.tables
    parts: list[Callable[[], Any]] = [
        lambda: experiment.trainer().check_optimizers(),
        lambda: _check_options(ENGINES, tables.get("engine", "local")),
        lambda: _check_options(DATASETS, tables.get("data")),
        lambda: _check_model(tables.get("model")),
    ]
    for part in parts:
        with contextlib.suppress(MissingExtraError, CodeRefusedError), registered_names_only("a check"):
            part()


def _check_options(registry: Registry[Any], plugin: Any) -> None:
    if isinstance(plugin, str | Mapping):
        name, options = named(plugin)
        checked_options(f"{registry.kind} {name!r}", registry.find(name).factory, options, {})


def _check_model(plugin: Any) -> None:
    """Check for unknown options only: the data determines the others."""
    if isinstance(plugin, str | Mapping):
        name, options = named(plugin)
        parameters = parameters_of(MODELS.find(name).factory)
        allowed = [*parameters, *ADAPTER_OPTIONS]
        unknown = [option for option in options if option not in allowed]
        if unknown and not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            meant = did_you_mean(unknown[0], allowed)
            raise ConfigurationError(
                f"model {name!r} has no option {unknown[0]!r}{meant} its options: {', '.join(parameters) or 'none'}"
            )

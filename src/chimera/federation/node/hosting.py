"""The actors that a node hosts: learners around its own data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from chimera.core.errors import ConfigurationError


def hosted(name: str, data: Path, model: str) -> Mapping[str, Callable[..., Any]]:
    """Return the classes that drivers may create, each with a function that makes its object.

    Parameters
    ----------
    data : a folder with ``X_train.csv`` and ``y_train.csv``.
    model : registered name of the model.

    Raises
    ------
    ConfigurationError : there is no such folder, or no such model.
    """
    from chimera.nodes.settings import read_settings
    from chimera.nodes.workers import TorchWorker

    if not data.is_dir():
        raise ConfigurationError(f"there is no folder {str(data)!r}")
    place = data.resolve()
    worker = TorchWorker(model, settings=read_settings(train_data=place.parent, worker_name=place.name))
    worker.name = name
    return worker.actors()

"""The program of `chimera nodes up`: run a master's file, or the master described in `chimera.toml`."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chimera.core.errors import ConfigurationError
from chimera.nodes.run import DEFAULT_PORT, run
from chimera.nodes.settings import read_settings
from chimera.nodes.settings_file import FILE, MASTER_KEYS, TABLE, read_table

MASTERS = {"aggregation": "AggregationMaster", "parameter-server": "ParameterServerMaster"}


def run_file(file: Path) -> None:
    """Run a file in its own folder, as ``python file`` does."""
    file = file.resolve()
    os.chdir(file.parent)
    sys.path.insert(0, str(file.parent))
    sys.argv = [str(file)]
    runpy.run_path(str(file), run_name="__main__")


def run_table() -> None:
    """Run the master described in the table ``[nodes]`` of `chimera.toml`.

    Its keys are ``master`` (``aggregation`` or ``parameter-server``), ``port`` of the master, and ``options``, a table of
    arguments of the master's class. All other keys are settings (`chimera.nodes.settings`).

    Raises
    ------
    ConfigurationError : there is no such table, or it has an invalid key or value.
    """
    read_settings()  # refuses unknown keys
    table = read_table()
    name, port, options = (table.get(key) for key in MASTER_KEYS)
    if name is None:
        raise ConfigurationError(
            f"there is no master to run: name the master's file, or write {FILE} with a table [{TABLE}] that has "
            f"master = {' or '.join(map(repr, MASTERS))}"
        )
    if not isinstance(name, str) or name not in MASTERS:
        raise ConfigurationError(f"{FILE}: master = {name!r} cannot be used; allowed: {', '.join(map(repr, MASTERS))}")
    if not isinstance(options, dict | None):
        raise ConfigurationError(f"{FILE}: options = {options!r} cannot be used; allowed: a table, [{TABLE}.options]")
    import chimera.nodes

    master: Callable[..., Any] = getattr(chimera.nodes, MASTERS[name])
    try:
        made = master(**(options or {}))
    except TypeError as error:
        raise ConfigurationError(f"{FILE}, [{TABLE}.options]: {error}") from error
    run(made, DEFAULT_PORT if port is None else port)

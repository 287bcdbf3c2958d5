"""The description of a run by the small files of its folder: settings, results, edges between its actors."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chimera.core.errors import ConfigurationError
from chimera.core.safe_path import open_regular, safe_path
from chimera.core.toml import read_toml
from chimera.web.live.topology import topology

SMALL = ("experiment.toml", "summary.json", "data.json")
"""The files that are replaced as a whole."""
_MAX_BYTES = 1 << 20


def version(folder: Path) -> str:
    """Return a text that changes when one of the small files does."""
    return " ".join(str(_changed_ns(folder / name)) for name in SMALL)


def describe(folder: Path) -> dict[str, Any]:
    """Return the settings, the results and the topology of a run; parts that do not exist yet are empty.

    ``notes`` are sentences about files that could not be read.
    """
    notes: list[str] = []
    experiment, summary, data = (_table(folder, name, notes) for name in SMALL)
    train = experiment.get("train")
    workers = train.get("workers") if isinstance(train, dict) else None
    edges, drawn, directed = topology(experiment)
    return {
        "experiment": experiment,
        "summary": summary,
        "data": data,
        "workers": workers if isinstance(workers, int) and not isinstance(workers, bool) else 0,
        "virtual": summary.get("virtual_time") is True or _name(experiment.get("engine")) == "simulated",
        "strategy": _name(experiment.get("strategy")),
        "edges": edges,
        "directed": directed,
        "drawn": drawn,
        "notes": notes,
    }


def _name(table: Any) -> str:
    name = table.get("name") if isinstance(table, Mapping) else table
    return name if isinstance(name, str) else ""


def read_small(folder: Path, name: str) -> bytes | None:
    """Return the content of one of `SMALL`, cut one byte after the part that is shown; None if there is no such file.

    Raises
    ------
    ConfigurationError : the file is a link out of the folder, or no regular file.
    OSError : the file cannot be read.
    """
    try:
        with open_regular(safe_path(folder, name)) as file:
            return file.read(_MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _table(folder: Path, name: str, notes: list[str]) -> dict[str, Any]:
    try:
        content = read_small(folder, name)
    except (ConfigurationError, OSError):
        notes.append(f"{name} could not be read.")
        return {}
    if content is None:
        return {}
    if len(content) > _MAX_BYTES:
        notes.append(f"{name} has more than {_MAX_BYTES >> 20} MiB and is not shown.")
        return {}
    try:
        text = content.decode()
        table = read_toml(text) if name.endswith(".toml") else json.loads(text)
        plain = _plain(table)
    except (ValueError, RecursionError):
        notes.append(f"{name} could not be read.")
        return {}
    return plain if isinstance(plain, dict) else {}


def _plain(value: Any) -> Any:
    """Return a value that JSON can represent: dates of TOML become texts, NaN and infinity None."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def _changed_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0

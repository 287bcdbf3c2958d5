"""Commands that a launcher of MPI or torchrun has started as several processes."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chimera.core.errors import ConfigurationError
from chimera.engines.mpi_launch import COMMAND, enter, is_mpi, launch_of, refuse_torchrun
from chimera.training.experiment.preloaded import PRELOADED

_COMMANDS = ("train", "embed")
_ALONE = ("calibrate", "compare", "demo", "retry", "submit")
"""Commands that run on one process only, whatever the engine."""


def enter_job(arguments: Sequence[str]) -> None:
    """Return on rank 0 of a job; host actors on the other ranks, which read no experiment and print nothing.

    Raises
    ------
    ConfigurationError : the processes would run the same command several times. Rank 0 raises it.
    SystemExit : this is another rank.
    """
    if not arguments or arguments[0] not in (*_COMMANDS, *_ALONE) or "--help" in arguments:
        return
    refuse_torchrun()
    launch = launch_of()
    if launch.size == 1:
        return
    try:
        if arguments[0] in _ALONE:
            raise ConfigurationError(
                f"the launcher started {launch.size} processes, and each would run 'chimera {arguments[0]}': "
                "type the command without a launcher"
            )
        engine = _engine_of(arguments)
        if not is_mpi(engine):
            raise ConfigurationError(
                f"the launcher started {launch.size} processes, but the engine is {engine!r}, which starts its workers "
                f"itself: type '{COMMAND}', or the command without a launcher"
            )
        enter(engine, PRELOADED if arguments[0] == "train" else ())
    except Exception:
        if launch.rank > 0:  # rank 0 reports it
            raise SystemExit(2) from None
        raise


def _engine_of(arguments: Sequence[str]) -> Any:
    """Return the engine that a command line names, or else that of its experiment file.

    If the file cannot be read, it is this one: rank 0 then reports the file, and other ranks, which may run on machines
    without it, end with rank 0.
    """
    for place, word in enumerate(arguments):
        if word == "--engine" and place + 1 < len(arguments):
            return arguments[place + 1]
        name, _, value = word.partition("=")
        if name in ("--engine", "engine", "engine.name"):
            return value
    file = next((word for word in arguments if word.endswith(".toml")), "")
    try:
        table = tomllib.loads(Path(file).read_text(encoding="utf-8")) if file else {}
    except (OSError, ValueError):
        return "mpi"
    engine = table.get("engine", "local")
    return engine.get("name") if isinstance(engine, dict) else engine

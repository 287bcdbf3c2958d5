"""The settings of a run that its driver declares to nodes. Nodes decide by these and by their own policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from chimera.core.engine import Engine
from chimera.training.experiment.settings import Settings
from chimera.training.nodes_data.model_table import FOLDER, plain_table
from chimera.training.progress.callback import Callback, Progress

MAX_ROUNDS = 10_000_000
"""The declared number of rounds of a run whose number of rounds is not known before it starts."""


_AGAIN = "for the nodes, a resumed run is another run: their policies and administrators decide again"
_NEW = "there is no run to resume here: a new run begins"


def declare(
    engine: Engine, settings: Settings, model: Any, say: Callable[[str], None], *, resumes: bool | None = None
) -> None:
    """Declare a run to the nodes of an engine that sends such settings; do nothing on other engines.

    Parameters
    ----------
    say : called with a text about the state of the run at its nodes, such as a wait for an administrator's decision.
    resumes : whether there is a run to resume; None: the user has not asked to resume one.
    """
    if (send := getattr(engine, "declare", None)) is not None:
        if resumes is not None:
            say(_AGAIN if resumes else _NEW)
        send(declared(settings, model), lambda text: say(f"waits for {text}"))


class Reports(Callback):
    """Reports the progress of a run to its engine, if the engine passes it on."""

    def __init__(self, engine: Engine) -> None:
        self._report = getattr(engine, "report", None)

    def on_progress(self, progress: Progress) -> None:
        """Report the completed rounds."""
        if self._report is not None:
            self._report(progress.rounds, progress.fraction)


def declared(settings: Settings, model: Any) -> dict[str, Any]:
    """Return the settings by which nodes decide, as plain values.

    - ``strategy``, ``model``: tables with ``name`` and options. The path of a folder on the driver's machine is left out.
    - ``rounds``: the largest number of updates of one node: the rounds of the run, and one for each replaced worker.
    - ``nodes``: the largest number of workers.
    - ``privacy``: the table ``[train.privacy]``, or None.
    - ``metrics``: names of the metrics that the run needs: those of the table of the model, ``target`` and ``monitor``.
    """
    rounds, tolerance = settings.rounds(None), settings.tolerance
    table = plain_table(model)
    if table["name"] == FOLDER:
        table.pop("path", None)
    metrics = table.get("metrics", ())
    needed = [metrics] if isinstance(metrics, str) else list(metrics)
    needed += [*(settings.budget.target or {}), *([settings.stopping.monitor] if settings.stopping.monitor else [])]
    return {
        "strategy": plain_table(settings.table["strategy"]),
        "model": table,
        "rounds": MAX_ROUNDS if rounds is None else min(rounds + tolerance.max_restarts, MAX_ROUNDS),
        "nodes": max(settings.workers, tolerance.max_workers or 0),
        "privacy": None if settings.privacy is None else asdict(settings.privacy),
        "metrics": list(dict.fromkeys(needed)),
    }

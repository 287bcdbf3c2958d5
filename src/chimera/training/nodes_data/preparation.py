"""The start of a run whose driver has no data: the nodes describe their data, and the driver checks the descriptions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from chimera.core.engine import Engine
from chimera.core.errors import ActorLost, ConfigurationError
from chimera.data.nodes import NodesData
from chimera.data.scaling import Scaling
from chimera.training.experiment.settings import Settings
from chimera.training.fault_tolerance.attendance import Attendance
from chimera.training.nodes_data.agreed import AgreedData
from chimera.training.nodes_data.agreement import agree
from chimera.training.nodes_data.description import DataDescription, described
from chimera.training.nodes_data.model_table import model_table
from chimera.training.progress.metric_monitor import Stopping

_TRIES = 10


def agreed_data(
    engine: Engine,
    declared: NodesData,
    model: Any,
    settings: Settings,
    scaling: Scaling | None = None,
) -> AgreedData:
    """Return what the nodes of a run agree on.

    Parameters
    ----------
    scaling : scaling of a resumed run. It replaces a scaling by the statistics of the connected nodes.

    Raises
    ------
    ConfigurationError : the nodes differ, or do not support the settings.
    RunError : a node does not answer.
    """
    if settings.test_per_client is not None:
        raise ConfigurationError("test_per_client: nodes keep test rows of their own choice, so leave it out")
    table = model_table(model)
    ranks, descriptions = _described(engine, settings.workers)
    found = replace(agree(declared, descriptions, table), ranks=tuple(ranks))
    if found.scaled == "statistics" and scaling is not None:
        found = replace(found, input_scaling=scaling)
    if all(one.metrics == "none" for one in found.descriptions):
        needed = ["target"] * bool(settings.budget.target) + ["monitor, patience or keep"] * (
            settings.stopping != Stopping()
        )
        needed += ["evaluate_clients"] * settings.evaluate_clients
        if needed:
            raise ConfigurationError(f"{needed[0]} needs metrics, but no node gives metrics of its test rows")
    return found


def _described(engine: Engine, workers: int) -> tuple[list[int], list[DataDescription]]:
    """Return the ranks of the workers whose nodes are connected, and the descriptions of these nodes."""
    nodes = Attendance(engine)
    for left in reversed(range(_TRIES)):
        ranks = nodes.begin(workers)
        try:
            return ranks, described(engine, ranks)
        except ActorLost:  # a node has left meanwhile
            if not (left and nodes.least):
                raise
    raise AssertionError("the last attempt returns or raises")

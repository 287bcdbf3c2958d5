"""The scenario of a simulated cluster: its jobs, its workers and their faults."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from chimera.core.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class SimulatedJob:
    """A job of a simulation.

    Attributes
    ----------
    seconds, fixed_s : seconds per query, and fixed seconds of each batch, on a worker of speed 1.
    at_once : number of queries that are computed in the time of one.
    queries : number of queries.
    tokens : tokens of each query and its result.
    at_s : time of its submission.
    load_s : seconds to load its model.
    weight, batch_size, max_workers : as in `chimera.inference.journal.records.Accepted`.
    """

    seconds: float
    queries: int
    fixed_s: float = 0.0
    at_once: int = 1
    tokens: int = 1
    at_s: float = 0.0
    load_s: float = 0.0
    weight: float = 1.0
    batch_size: int = 0
    max_workers: int = 0

    def __post_init__(self) -> None:
        if not (
            self.seconds > 0
            and self.weight > 0
            and min(self.queries, self.fixed_s, self.at_s, self.load_s) >= 0
            and self.at_once >= 1
        ):
            raise ConfigurationError("a simulated job needs seconds and weight above 0, and no negative values")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault of a worker.

    Attributes
    ----------
    worker : number of the worker.
    at_s : time of the fault.
    kind : ``kill``: the worker dies, and restarts with no model loaded; ``hang``: it stops, and continues later.
    duration_s : seconds until it is available again.
    """

    worker: int
    at_s: float
    kind: Literal["kill", "hang"] = "kill"
    duration_s: float = 3.0


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """The conditions of a simulation.

    Attributes
    ----------
    speeds : speed of each worker; at 2 a query takes half as long.
    keep_models : maximum number of models in a worker's memory; the least recently used is removed.
    warm : whether workers start with the models of the first jobs loaded.
    noise : sigma of the log-normal factor (of mean 1) on the seconds of a batch.
    latency_s : seconds between the end of a batch and the beginning of the next on a worker.
    faults : the faults.
    until_s : time at which the simulation stops, even if queries are left.
    seed : seed of all random numbers.
    """

    speeds: Sequence[float] = (1.0,) * 10
    keep_models: int = 8
    warm: bool = False
    noise: float = 0.05
    latency_s: float = 0.001
    faults: Sequence[Fault] = ()
    until_s: float = math.inf
    seed: int = 0

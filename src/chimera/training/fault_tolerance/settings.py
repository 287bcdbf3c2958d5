"""Fault-tolerance settings of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, Self, TypeAlias, get_args

from chimera.core.counted import counted
from chimera.core.errors import ConfigurationError

OnWorkerLoss: TypeAlias = Literal["respawn", "redistribute", "drop", "stop"]


@dataclass(frozen=True, kw_only=True)
class FaultTolerance:
    """Fault-tolerance settings, see `Trainer`.

    Attributes
    ----------
    min_workers, max_workers : bounds of the number of living workers; None: not more than at the start.
    on_worker_loss, max_restarts : what happens to a lost worker, and how many are replaced.
    worker_timeout_s : seconds without a heartbeat after which an actor counts as lost.
    """

    min_workers: int = 1
    max_workers: int | None = None
    on_worker_loss: OnWorkerLoss = "respawn"
    max_restarts: int = 3
    worker_timeout_s: float = math.inf

    def __post_init__(self) -> None:
        if self.min_workers < 1:
            raise ConfigurationError(f"min_workers must be at least 1, not {self.min_workers}")
        if self.on_worker_loss not in get_args(OnWorkerLoss):
            choices = ", ".join(get_args(OnWorkerLoss))
            raise ConfigurationError(f"on_worker_loss must be one of {choices}, not {self.on_worker_loss!r}")
        if self.max_restarts < 0:
            raise ConfigurationError(f"max_restarts must be at least 0, not {self.max_restarts}")
        if not self.worker_timeout_s > 0:
            raise ConfigurationError(f"worker_timeout_s must be above 0, not {self.worker_timeout_s}")

    def check(self, workers: int) -> None:
        """Raise `ConfigurationError` if a run cannot start with this number of workers."""
        if self.min_workers > workers:
            raise ConfigurationError(f"min_workers is {self.min_workers}, but the run has {counted(workers, 'worker')}")
        if self.max_workers is not None and self.max_workers < workers:
            raise ConfigurationError(
                f"max_workers is {self.max_workers}, but the run starts with {counted(workers, 'worker')}"
            )

    def of_parts(self, workers: int) -> Self:
        """Return these settings for a run in which each worker holds a part of the model, so that none can be missing.

        Raises
        ------
        ConfigurationError : the settings let the run continue without a worker, or let workers join.
        """
        if self.on_worker_loss in ("drop", "redistribute"):
            raise ConfigurationError(
                f"on_worker_loss is {self.on_worker_loss!r}, but each worker holds a part of the model: choose respawn or stop"
            )
        if self.max_workers is not None:
            raise ConfigurationError(
                "max_workers has no effect where the model is split over the workers: there is one worker for each part"
            )
        return replace(self, min_workers=workers)

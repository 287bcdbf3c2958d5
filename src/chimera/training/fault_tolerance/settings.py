"""What a run puts up with."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, Self, TypeAlias, get_args

from chimera.core.errors import ConfigurationError

OnWorkerLoss: TypeAlias = Literal["respawn", "redistribute", "drop", "stop"]


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """How a run meets losses; see `Trainer` for what each says.

    Attributes
    ----------
    min_workers, max_workers : how few and how many workers there may be; None for as many as at first.
    on_worker_loss, max_restarts : what becomes of a lost worker, and how often.
    worker_timeout_s : when silence counts as loss.
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
        """Raise `ConfigurationError` if a run cannot begin with so many workers."""
        if self.min_workers > workers:
            raise ConfigurationError(f"min_workers is {self.min_workers}, and there are {workers} workers")
        if self.max_workers is not None and self.max_workers < workers:
            raise ConfigurationError(f"max_workers is {self.max_workers}, and there are {workers} workers at first")

    def of_parts(self, workers: int) -> Self:
        """Return the same for a run that can do without none of its workers, since each has a part of the model.

        Raises
        ------
        ConfigurationError : others are to go on without one, or more are to join.
        """
        if self.on_worker_loss in ("drop", "redistribute"):
            raise ConfigurationError(
                f"on_worker_loss is {self.on_worker_loss!r}, and each worker holds a part of the model: choose respawn or stop"
            )
        if self.max_workers is not None:
            raise ConfigurationError(
                "max_workers has no use where the model is cut over the workers: there are as many as parts"
            )
        return replace(self, min_workers=workers)

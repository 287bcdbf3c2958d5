"""The peak speed of the workers, to which a run's FLOPs are compared."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from chimera.core.errors import ConfigurationError


@dataclass(frozen=True)
class Peak:
    """The peak of a worker's device in FLOPs per second.

    Attributes
    ----------
    given : the user's option ``peak_flops``, for each worker; None: the peaks that workers report of their devices.
    share : the part of a device that a worker has, 0 to 1.

    Raises
    ------
    ConfigurationError : ``given`` is not above 0 and finite.
    """

    given: float | None = None
    share: float = 1.0

    def __post_init__(self) -> None:
        if self.given is not None and not 0 < self.given < math.inf:
            raise ConfigurationError(f"peak_flops must be above 0 and finite, not {self.given}")

    def check(self, model: Any, *, private: bool) -> None:
        """Raise ConfigurationError if ``given`` has no effect: the model does not report its FLOPs, or the run is private."""
        if self.given is None:
            return
        if getattr(model, "work_of", None) is None:
            what = type(getattr(model, "module", model)).__name__
            raise ConfigurationError(f"peak_flops: {what} does not say the FLOPs of a batch: leave it out")
        if private:
            raise ConfigurationError("peak_flops: private workers do not report their tokens: leave it out")

    def total(self, reported: Mapping[str, float], workers: Collection[str], *, virtual: bool) -> float | None:
        """Return the peak of all workers together; None if the peak of a worker is not known.

        Parameters
        ----------
        reported : peak of the device of each worker, by name, as far as known; ignored in virtual time.
        workers : names of all workers.
        virtual : whether seconds are virtual.
        """
        if self.given is not None:
            return self.given * len(workers)
        if virtual or not workers or not reported.keys() >= set(workers):
            return None
        return self.share * sum(reported[name] for name in workers)


def utilisation(flops: float, seconds: float, peak_flops: float | None) -> float | None:
    """Return the model FLOP utilisation (MFU), 1 at the peak: FLOPs per second divided by ``peak_flops``; None if not known."""
    return flops / seconds / peak_flops if peak_flops and seconds and flops else None

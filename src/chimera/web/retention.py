"""The retention time of finished jobs."""

from __future__ import annotations

import math

from chimera.core.errors import ConfigurationError

_DAY_S = 86_400.0


def keep_s(keep_days: float | None) -> float | None:
    """Return the seconds from the end of a job until it is deleted; None means never.

    Raises
    ------
    ConfigurationError : ``keep_days`` is not a finite number of at least 0.
    """
    if keep_days is None:
        return None
    if isinstance(keep_days, bool) or not isinstance(keep_days, int | float) or not 0 <= keep_days < math.inf:
        raise ConfigurationError(f"keep_days must be a number of days from 0, not {keep_days!r}")
    return keep_days * _DAY_S

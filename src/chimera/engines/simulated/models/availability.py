"""The availability model: the times at which actors join, leave and crash."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from chimera.engines.simulated.options import check_range


@dataclass(frozen=True, kw_only=True)
class Availability:
    """Virtual times in seconds, by actor name. They concern the first actor of that name, not one that replaces it.

    Attributes
    ----------
    join : time from which the actor exists; its first call waits until then.
    leave : time after which calls raise `ActorLost`; a call that runs at that time completes.
    crash : time of the actor's death; the call that runs at that time, and later calls, raise `ActorLost`.
    """

    join: Mapping[str, float] = field(default_factory=dict)
    leave: Mapping[str, float] = field(default_factory=dict)
    crash: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for what in ("join", "leave", "crash"):
            for name, time_s in getattr(self, what).items():
                check_range(f"{what}, {name!r}", time_s)

"""The modelled availability: who joins, leaves and crashes, and when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from chimera.engines.simulated.options import check_range


@dataclass(frozen=True, kw_only=True)
class Availability:
    """Virtual times in seconds, by actor name. They concern the first actor of that name, not one that replaces it.

    Attributes
    ----------
    join : the actor is not there before; its first call waits for it.
    leave : the call that runs then ends well; later ones raise `ActorLost`.
    crash : the call that runs then is lost, and so are later ones.
    """

    join: Mapping[str, float] = field(default_factory=dict)
    leave: Mapping[str, float] = field(default_factory=dict)
    crash: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for what in ("join", "leave", "crash"):
            for name, time_s in getattr(self, what).items():
                check_range(f"{what}, {name!r}", time_s)

"""The share of a round's noise in the updates of each actor."""

from __future__ import annotations

from chimera.federation.policy.admission import planned_share
from chimera.federation.policy.declared import Declared
from chimera.federation.policy.requests import Call

_MAX_RUNS = 10_000


class Shares:
    """The share of the noise, see `multiplier`, in the next updates of the most recent actors.

    An actor may still exist after its entry was removed. Once an entry was removed, an actor without one counts with
    the smallest share that the settings of its run permit. So no removal makes the counted noise larger than the real
    one.
    """

    def __init__(self) -> None:
        self._shares: dict[tuple[str, str], float] = {}  # by run and actor, the least recently used first
        self._removed = False

    def of(self, call: Call, declared: Declared) -> float:
        """Return the share in an update; 0 if the actor received no list of participants for its masks."""
        key, protection = (call.run, call.actor), declared.protection
        if (known := self._shares.pop(key, None)) is not None:
            self._shares[key] = known
            return known
        masked = protection is not None and protection.secure_aggregation
        return 0.0 if masked else self._most(declared)

    def note(self, call: Call, declared: Declared, share: float) -> None:
        """Note the share in the next updates of an actor."""
        key = call.run, call.actor
        # The smallest share: calls of one actor may be decided in another order than they run.
        self._shares[key] = min(share, self._shares.pop(key, self._most(declared)))
        while len(self._shares) > _MAX_RUNS:
            del self._shares[next(iter(self._shares))]
            self._removed = True

    def _most(self, declared: Declared) -> float:
        """Return the largest share that an actor without an entry may have."""
        return planned_share(declared) if self._removed and declared.protection is not None else 1.0

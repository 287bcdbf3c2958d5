"""The rendezvous of a group's members in Ray's key-value store, before they are connected; and checks of living members."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from chimera.core.errors import ActorLost, ConfigurationError
from chimera.engines.collectives import Costs
from chimera.engines.ray.heartbeat import NAMESPACE

DEATH_CHECK_INTERVAL_S = 0.5
_DEATH_REPORT_LIMIT_S = 3.0
_PAUSE_S = 0.05


class Members:
    """The members of a group, as one of them sees them.

    Parameters
    ----------
    costs : the engine object of this actor, which counts costs.
    me : key of this actor.
    members : key and name of each member, in rank order.

    Attributes
    ----------
    rank : rank of this actor.
    lost : why the group is lost; None while all members are alive.
    """

    def __init__(self, costs: Costs, me: str, members: Sequence[tuple[str, str]]) -> None:
        keys = [key for key, _ in members]
        if me not in keys:
            raise ConfigurationError("this actor is not a member of the group it was given")
        self._costs, self._members = costs, tuple(members)
        self.rank, self.size = keys.index(me), len(members)
        self.names = [name for _, name in members]
        self.lost: str | None = None

    def check_for_deaths(self) -> None:
        """Raise `ActorLost` if Ray reports a member as dead. This check also records a heartbeat."""
        self._costs.alive()
        living = living_actors()
        for key, name in self._members:
            if key not in living:
                raise self.lose_to_death(name)

    def lose_to_death(self, name: str) -> ActorLost:
        """Return the error to raise from now on, because a member is dead."""
        return self.lose(f"{name} died, and its group with it")

    def lose_to_break(self, reason: object) -> ActorLost:
        """Return the error to raise from now on, because a connection has ended: Ray soon reports the death that ended it."""
        deadline_s = time.monotonic() + _DEATH_REPORT_LIMIT_S
        try:
            while time.monotonic() < deadline_s:
                self.check_for_deaths()
                time.sleep(_PAUSE_S)
        except ActorLost as error:
            return error
        return self.lose(f"a group of {self.size} actors broke apart: {reason}")

    def lose(self, reason: str) -> ActorLost:
        """Return the error to raise from now on, because the group is lost."""
        self.lost = reason
        return ActorLost(reason)


class RendezvousStore:
    """Entries that all members of a group can read.

    Parameters
    ----------
    group : key of the group.
    check_for_deaths : called repeatedly while a member waits for an entry; raises if no member will write it.
    """

    def __init__(self, group: str, check_for_deaths: Callable[[], None]) -> None:
        self._group, self._check_for_deaths = group, check_for_deaths

    def set(self, key: str, value: bytes | str) -> None:
        """Write an entry."""
        from ray.experimental import internal_kv

        internal_kv._internal_kv_put(f"{self._group}/{key}", value, namespace=NAMESPACE)

    def get(self, key: str) -> bytes:
        """Return an entry once it exists."""
        from ray.experimental import internal_kv

        pause_s, checked_s = 0.001, time.monotonic()
        while (value := internal_kv._internal_kv_get(f"{self._group}/{key}", namespace=NAMESPACE)) is None:
            if time.monotonic() - checked_s > DEATH_CHECK_INTERVAL_S:
                self._check_for_deaths()
                checked_s = time.monotonic()
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.02)
        return bytes(value)


def living_actors() -> set[str]:
    """Return the keys of all actors of this job that Ray does not report as dead."""
    from ray.util import list_named_actors

    return set(list_named_actors())

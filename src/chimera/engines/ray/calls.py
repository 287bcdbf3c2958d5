"""The driver's calls: each is sent to Ray at once, and its trace row arrives after its end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from chimera.core.errors import ActorLost, ConfigurationError
from chimera.core.trace import TraceRow
from chimera.engines.failure import Failure
from chimera.engines.handle import check_returns
from chimera.engines.ray.actor_registry import ActorRegistry
from chimera.engines.ray.refs import Channel, Issued, Ref
from chimera.engines.ray.row_format import packed_rows
from chimera.engines.ray.rows import take_rows, take_rows_of_actors
from chimera.engines.ray.shared import CallSlots, RefArgument, Spot

_MAX_ROWS = 1000


class Calls:
    """Issues calls and records them until their rows have arrived.

    Parameters
    ----------
    registry : the records of the called actors.
    began_s : start of the engine, from which rows count time.

    Attributes
    ----------
    actors_may_call : whether an actor may hold a handle of another, and so produce rows of its own.
    """

    def __init__(self, registry: ActorRegistry, began_s: float) -> None:
        import ray

        self._ray, self._registry, self._began_s = ray, registry, began_s
        self.actors_may_call = False

    def put(self, value: Any) -> Ref:
        """Store a value in Ray's object store, once."""
        return Ref(Issued(None, "put", time.monotonic(), (), None), self._put(value))

    def issue(
        self, channel: Channel, method: str, returns: int | None, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        """Issue a call; return its ref, or the list of its refs if their number is given."""
        check_returns(returns, channel.name, method)
        if channel.died_s is not None:
            return self._lost_results(channel, method, returns)
        if len(channel.calls) > _MAX_ROWS:
            self.take_rows()
        parents = [a.issued for a in args if type(a) is Ref]
        own = [i for i, a in enumerate(args) if type(a) is Ref and a.issued.channel is channel] if parents else None
        reads: list[RefArgument] = [(i, a) for i, a in enumerate(args) if type(a) is Ref and a.spot is not None]
        given = [a.object if type(a) is Ref else a for a in args]
        if kwargs:
            parents += [a.issued for a in kwargs.values() if type(a) is Ref]
            reads += [(k, a) for k, a in kwargs.items() if type(a) is Ref and a.spot is not None]
            kwargs = {k: a.object if type(a) is Ref else a for k, a in kwargs.items()}
        slots = self._slots(channel, returns or 1, reads)
        header = method, returns, own or None, None if slots is None else slots.header()
        try:
            row, *objects = channel.remote(returns or 1)(header, *given, **kwargs)
        except TypeError as error:
            if slots is not None:
                slots.refuse()
            raise _cannot_travel(error) from error
        issued = Issued(channel, method, time.monotonic(), tuple(parents), row)
        channel.calls.append(issued)
        spots: Sequence[Spot | None] = [None] * len(objects)
        if slots is not None:
            issued.slots = slots
            slots.give(channel.side)
            spots = slots.spots or spots
        refs = [Ref(issued, each, spot) for each, spot in zip(objects, spots, strict=True)]
        return refs[0] if returns is None else refs

    def _slots(self, channel: Channel, returns: int, reads: list[RefArgument]) -> CallSlots | None:
        """Return the slots of shared memory for a call."""
        if channel.side is not None:
            return channel.side.lend(returns, reads, in_memory=not self._registry.far)
        return CallSlots(None, [], reads) if reads else None

    def take_rows(self) -> None:
        """Fetch the rows of ended calls into the records of the actors."""
        take_rows(self._registry.channels, self._began_s, self._registry.name_of_dead)

    def take_all_rows(self) -> None:
        """Fetch the rows of calls between actors, too."""
        self.take_rows()
        if self.actors_may_call:
            take_rows_of_actors(self._registry.channels, self._began_s)

    def give_rows(self) -> list[TraceRow]:
        """Return the rows that were fetched since the last call of this method, oldest first per actor."""
        return [row for channel in self._registry.channels for row in channel.give_rows()]

    def _lost_results(self, channel: Channel, method: str, returns: int | None) -> Any:
        """Return refs that raise `ActorLost`, as do refs that depend on them."""
        error = ActorLost(f"{channel.name} died; the call {method!r} has no result")
        now = time.monotonic()
        row = packed_rows((now, now, now, 0, 0, 0, 0, 0, b"ActorLost"), {})
        issued = Issued(channel, method, now, (), self._ray.put(row))
        channel.calls.append(issued)
        refs = [Ref(issued, self._put(Failure(error, channel.name, method))) for _ in range(returns or 1)]
        return refs[0] if returns is None else refs

    def _put(self, value: Any) -> Any:
        try:
            return self._ray.put(value)
        except TypeError as error:
            raise _cannot_travel(error) from error


def _cannot_travel(error: TypeError) -> ConfigurationError:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return ConfigurationError(f"a value cannot travel to another process: {lines[0] if lines else error}")

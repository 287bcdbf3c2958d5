"""The driver's side of an actor: refs, the handle, and the calls whose rows have not arrived yet."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from chimera.core.engine import Resources
from chimera.core.errors import ConfigurationError
from chimera.core.trace import TraceRow
from chimera.engines.handle import ActorHandle
from chimera.engines.ray.heartbeat import Heartbeats
from chimera.engines.ray.row_format import Row, row_of_call, rows_of_parts
from chimera.engines.ray.shared import CallSlots, Side, Spot


class Issued:
    """The driver's record of a call until its row has arrived.

    Attributes
    ----------
    row : Ray's ref of the row; None once it has arrived.
    issued_s, end_s : when the driver issued it, and when it ended; seconds of the driver's clock.
    parents : the calls whose results are its arguments.
    slots : its slots of the shared memory.
    """

    __slots__ = ("channel", "end_s", "issued_s", "method", "parents", "row", "slots")

    def __init__(
        self, channel: Channel | None, method: str, issued_s: float, parents: tuple[Issued, ...], row: Any
    ) -> None:
        self.channel, self.method, self.issued_s, self.parents, self.row = channel, method, issued_s, parents, row
        self.end_s = issued_s
        self.slots: CallSlots | None = None


class Ref:
    """A future for a value in Ray's object store, or in a slot of the memory that the machine's actors share.

    Attributes
    ----------
    object : Ray's ref; its object is empty if the value is in the slot.
    spot : the slot in which the value may be; None if it can only be Ray's.
    """

    __slots__ = ("__weakref__", "issued", "object", "spot")

    def __init__(self, issued: Issued, object_ref: Any, spot: Spot | None = None) -> None:
        self.issued, self.object, self.spot = issued, object_ref, spot

    def __del__(self) -> None:
        if self.spot is not None:
            self.spot.side.drop(self.spot.slot, self.spot.generation)

    def value(self, stored: Any) -> Any:
        """Return the value, if Ray's object is ``stored``; arrays in shared memory keep the ref alive."""
        return stored if self.spot is None else self.spot.side.value(self.spot, stored, self)

    def __reduce__(self) -> tuple[Any, ...]:
        raise ConfigurationError("a ref travels as an argument of its own, not inside a list, a dict or an object")

    def __repr__(self) -> str:
        channel = self.issued.channel
        return f"<Ref to {self.issued.method!r} of {channel.name if channel else 'driver'}>"


class Channel:
    """The driver's record of one actor.

    Attributes
    ----------
    key : the actor's name in Ray.
    calls : calls whose rows have not arrived, oldest first.
    died_s : when its death became known.
    spawned_s : when the driver requested it.
    placed : whether Ray is known to have placed it.
    heartbeats : its heartbeats.
    reserved_place : its place in a reservation.
    made : Ray's ref of the row of the call that creates the user's object.
    side : its region of the memory that the actors of the driver's machine share; an actor on another machine does not use it.
    """

    def __init__(
        self, key: str, name: str, rank: int, resources: Resources, handle: Any, reserved_place: Any, side: Side | None
    ) -> None:
        self.key, self.name, self.rank, self.resources = key, name, rank, resources
        self.handle, self.reserved_place, self.side = handle, reserved_place, side
        self.spawned_s = time.monotonic()
        self.calls: deque[Issued] = deque()
        self.died_s: float | None = None
        self.placed = False
        self.heartbeats = Heartbeats(self.spawned_s)
        self._rows: list[TraceRow] = []
        self._last_end_s = 0.0
        self._remotes: dict[int, Callable[..., list[Any]]] = {}
        self._asked_for_rows: Any = None
        self.made: Any = None

    @property
    def is_near(self) -> bool:
        """Whether the actor is known to have mapped the driver's memory."""
        return self.side is not None and self.side.is_mapped

    def remote(self, results: int) -> Callable[..., list[Any]]:
        """Return Ray's function that issues a call with this number of results and the row."""
        if results not in self._remotes:
            method = self.handle.call.options(num_returns=results + 1, enable_task_events=False)
            self._remotes[results] = method.remote
        return self._remotes[results]

    def give_rows(self) -> list[TraceRow]:
        """Return the rows that arrived since the last call of this method, oldest first."""
        rows, self._rows = self._rows, []
        return sorted(rows, key=lambda row: row.start_s)

    def ask_for_rows(self) -> Any:
        """Return Ray's ref of the rows of calls by other actors."""
        if self._asked_for_rows is None and self.died_s is None:
            self._asked_for_rows = self.handle.give_rows.options(enable_task_events=False).remote()
        return self._asked_for_rows

    def take_rows_of_actors(self, rows: list[tuple[str, bytes]], began_s: float) -> None:
        """Keep the requested rows."""
        self._asked_for_rows = None
        for method, packed in rows:
            self._keep_rows(method, row_of_call(packed), rows_of_parts(packed), began_s)

    def take_row(self, packed: bytes | None, error: str, began_s: float) -> None:
        """Keep the row of the oldest call, which has arrived or never will."""
        issued = self.calls.popleft()
        parts: list[tuple[str, Row]] = []
        if packed is None:
            end_s = max(issued.issued_s, self._last_end_s) if self.died_s is None else self.died_s
            row: Row = end_s, end_s, end_s, 0.0, 0.0, 0, 0, 0, error.encode()
        else:
            self.placed = True
            row, parts = row_of_call(packed), rows_of_parts(packed)
            start_s, end_s, idle_s, *_ = row
            idle_s = max(issued.issued_s, self._last_end_s, idle_s, *(parent.end_s for parent in issued.parents), 0.0)
            row = start_s, end_s, idle_s, *row[3:]
        issued.end_s = self._last_end_s = end_s
        if issued.slots is not None:
            if packed is None and self.died_s is None:
                issued.slots.take_back(self.side)
            issued.slots = None
        issued.parents, issued.row = (), None
        self._keep_rows(issued.method, row, parts, began_s)

    def _keep_rows(self, method: str, row: Row, parts: list[tuple[str, Row]], began_s: float) -> None:
        """Keep the rows of a call and of its parts. The time in which its arguments arrived counts in the first of them."""
        arriving_s = max(row[0] - row[2], 0.0)
        for call, each in parts:
            self._keep_row(call, each, each[0] - began_s, arriving_s, began_s)
            arriving_s = 0.0
        start_s = parts[-1][1][1] if parts else row[0]
        self._keep_row(method, row, start_s - began_s, arriving_s, began_s)

    def _keep_row(self, call: str, row: Row, start_s: float, arriving_s: float, began_s: float) -> None:
        _, end_s, _, moved_s, waited_s, bytes_in, bytes_out, samples, error = row
        self._rows.append(
            TraceRow(
                actor=self.name,
                rank=self.rank,
                call=call,
                start_s=start_s,
                end_s=end_s - began_s,
                bytes_in=bytes_in,
                bytes_out=bytes_out,
                transfer_s=moved_s + arriving_s,
                wait_s=waited_s,
                samples=samples,
                error=error.rstrip(b"\0").decode(errors="ignore"),
            )
        )


class RayActor(ActorHandle):
    """The handle of an actor of this engine."""

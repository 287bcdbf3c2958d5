"""The driver's side of an actor: its slots, their refs, and the calls in flight."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from chimera.core.errors import ConfigurationError
from chimera.core.trace import TraceRow
from chimera.engines.handle import ActorHandle
from chimera.engines.local.ring_buffers import Row, read_parts, read_rows
from chimera.engines.shared_memory.memory import HEARTBEAT_NS, ROWS_WRITTEN, Memory
from chimera.engines.shared_memory.result_slots import ResultSlots


class Ref:
    """A future for a value in an actor's slot. When its last reference is deleted, the slot can be reused."""

    __slots__ = ("__weakref__", "call", "channel", "generation", "number", "slot")

    def __init__(self, channel: Channel, slot: int, generation: int, call: str, number: int) -> None:
        self.channel, self.slot, self.generation, self.call, self.number = channel, slot, generation, call, number

    def __del__(self) -> None:
        self.channel.drop(self.slot, self.generation)

    def __reduce__(self) -> tuple[Any, ...]:
        raise ConfigurationError("a ref travels as an argument of its own, not inside a list, a dict or an object")

    def __repr__(self) -> str:
        return f"<Ref to {self.call!r} of {self.channel.name}>"


class Channel(ResultSlots):
    """The driver's record of one actor, or of itself for the values that it puts."""

    def __init__(self, memory: Memory, actor: int, name: str, rank: int) -> None:
        super().__init__(memory, actor, name)
        self.rank = rank
        self.backlog: deque[bytes] = deque()  # messages that had no room in the ring buffer
        self.calls: deque[str] = deque()  # methods of the calls whose rows have not been read
        self.issued = self.rows_read = 0
        self.died_s: float | None = None
        self.disturbed = 0  # number of disturbances that have begun
        self._rows: list[TraceRow] = []

    def silent_s(self) -> float:
        """The seconds since the actor's last heartbeat; 0 until its constructor has ended."""
        begun = self.region.words[ROWS_WRITTEN] > 0
        return (time.monotonic_ns() - self.region.words[HEARTBEAT_NS]) / 1e9 if begun else 0.0

    @property
    def in_flight(self) -> int:
        """The number of calls that have not ended; 0 if the actor is dead."""
        return 0 if self.dead else self.issued - self.region.words[ROWS_WRITTEN]

    def ready(self, ref: Ref) -> bool:
        """Whether the value is ready."""
        return self.region.ready(ref.slot, ref.generation)

    def trace(self, began_s: float) -> list[TraceRow]:
        """Return the rows of the calls that ended since the last call of this method."""
        self.keep_rows(began_s)
        rows, self._rows = self._rows, []
        return rows

    def keep_rows(self, began_s: float) -> None:
        """Take the rows out of the ring buffers, for `trace` to return."""
        rows = list(self._new_rows(began_s))  # before the parts, so that a call's parts are among them
        parts = [self._row(part, part[-1].rstrip(b"\0").decode(), began_s, b"") for part in read_parts(self.region)]
        self._rows.extend(sorted([*parts, *rows], key=_start_s) if parts else rows)

    def _new_rows(self, began_s: float) -> Iterator[TraceRow]:
        for row in read_rows(self.region, self.rows_read):
            self.rows_read += 1
            if not self.calls:  # the actor survived its fork server for a moment: its calls have been reported as lost
                continue
            yield self._row(row, self.calls.popleft(), began_s, row[-1])
        if self.died_s is not None:
            died_s = self.died_s - began_s
            while self.calls:
                yield TraceRow(self.name, self.rank, self.calls.popleft(), died_s, died_s, error="ActorLost")

    def _row(self, row: Row, call: str, began_s: float, error: bytes) -> TraceRow:
        _, start, end, transfer, wait, bytes_in, bytes_out, samples, _ = row
        return TraceRow(
            actor=self.name,
            rank=self.rank,
            call=call,
            start_s=start - began_s,
            end_s=end - began_s,
            bytes_in=bytes_in,
            bytes_out=bytes_out,
            transfer_s=transfer,
            wait_s=wait,
            samples=samples,
            error=error.rstrip(b"\0").decode(errors="ignore"),
        )


def _start_s(row: TraceRow) -> float:
    return row.start_s


class LocalActor(ActorHandle):
    """The handle of an actor of this engine."""

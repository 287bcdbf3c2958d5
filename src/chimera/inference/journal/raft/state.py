"""The replicated state of the journal, and the commands that change it, which all voters execute in the same order.

No decision depends on a clock: a process acquires the lease by naming the lease whose end it has seen.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from chimera.inference.journal.journal import Lease, Output
from chimera.inference.journal.raft.packing import array_head, packed_list
from chimera.inference.journal.records import job_of

_REPLIES = 1000
REFUSED = "invalid command"


class Acquire(Struct, tag=True, array_like=True):
    """Acquire the lease if ``serial`` is still the number of its last change; the reply is the epoch, or 0."""

    id: bytes
    owner: str
    address: str
    lease_s: float
    serial: int


class Renew(Struct, tag=True, array_like=True):
    """Renew the lease for ``lease_s`` seconds; the reply is an error text, or empty."""

    id: bytes
    epoch: int
    lease_s: float


class Append(Struct, tag=True, array_like=True):
    """Append records, results (job, batch, first, count, body) and inputs; the reply is an error text, or empty."""

    id: bytes
    epoch: int
    records: list[bytes]
    outputs: list[tuple[str, int, int, int, bytes]]
    inputs: list[tuple[str, int, bytes]]


class Drop(Struct, tag=True, array_like=True):
    """Delete all data of jobs; the reply is an error text, or empty."""

    id: bytes
    epoch: int
    jobs: list[str]


class Piece(Struct, tag=True, array_like=True):
    """A piece of a large command; the reply to the last piece is the reply to the command."""

    id: bytes
    whole: bytes
    number: int
    count: int
    body: bytes


Command: TypeAlias = Acquire | Renew | Append | Drop | Piece
Reply: TypeAlias = int | str


class _Taken(Struct, array_like=True):
    """The lease; ``serial`` counts its changes."""

    owner: str
    epoch: int
    address: str
    lease_s: float
    serial: int


class _Dump(Struct, array_like=True):
    lease: _Taken | None
    records: list[bytes]
    outputs: list[tuple[str, int, int, int, bytes]]
    inputs: list[tuple[str, int, bytes]]
    replies: list[tuple[bytes, Reply]]
    pieces: list[tuple[bytes, list[bytes]]]


_COMMAND: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)


class _Numbered(NamedTuple):
    """A packed record."""

    number: int
    job: str
    body: bytes


class RaftState:
    """A voter's replica of the journal. One thread changes it, any thread reads it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fill(_Dump(None, [], [], [], [], []))

    def _fill(self, dump: _Dump) -> None:
        self._lease = dump.lease
        self._records: list[_Numbered] = []
        self._numbered = 0
        self._add(dump.records)
        self._since_s = time.monotonic()  # when this voter saw the last change of the lease
        self._outputs: dict[str, list[Output]] = {}
        self._done: dict[str, set[int]] = {}
        for row in dump.outputs:
            self._put(Output(*row))
        self._inputs = {(job, first): body for job, first, body in dump.inputs}
        self._replies = OrderedDict(dump.replies)
        self._pieces = dict(dump.pieces)

    def apply(self, body: bytes) -> Reply:
        """Execute a command once; a repeated command gets the reply of its first execution."""
        try:
            command = _COMMAND.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return REFUSED
        with self._lock:
            reply = self._replies.get(command.id)
            if reply is None:
                reply = self._execute(command)
                self._replies[command.id] = reply
                if len(self._replies) > _REPLIES:
                    self._replies.popitem(last=False)
            return reply

    def lease(self) -> tuple[Lease | None, int]:
        """Return the last lease, and the number of its last change."""
        with self._lock:
            taken = self._lease
            if taken is None:
                return None, 0
            left_s = self._since_s + taken.lease_s - time.monotonic()
            return Lease(taken.owner, taken.epoch, taken.address, left_s), taken.serial

    def records(self, after: int, count: int) -> list[tuple[int, bytes]]:
        """Return up to ``count`` packed records after a number, each with its number."""
        with self._lock:
            at = bisect_right(self._records, after, key=_number)
            return [(one.number, one.body) for one in self._records[at : at + count]]

    def outputs(self, job: str, first: int, count: int) -> list[Output]:
        """Return up to ``count`` results of a job, starting with the batch of query ``first``."""
        with self._lock:
            found = self._outputs.get(job, [])
            at = max(bisect_right(found, first, key=_first) - 1, 0)
            return [one for one in found[at : at + count] if one.first + one.count > first]

    def chunks(self, job: str) -> list[tuple[int, int]]:
        """Return the index of the first query and the bytes of each chunk of a job's queries, in order."""
        with self._lock:
            return sorted((first, len(body)) for (name, first), body in self._inputs.items() if name == job)

    def jobs_with_queries(self) -> set[str]:
        """Return the jobs that have stored queries."""
        with self._lock:
            return {job for job, _ in self._inputs}

    def body(self, job: str, first: int) -> bytes:
        """Return a chunk of packed queries."""
        with self._lock:
            return self._inputs[job, first]

    def dump(self) -> bytes:
        """Return the packed state."""
        return b"".join(self.snapshot()())

    def snapshot(self) -> Callable[[], Iterator[bytes]]:
        """Return a function that packs the present state in pieces. Any thread can call it: it is slow, but holds no lock."""
        with self._lock:
            outputs = [
                (one.job, one.batch, one.first, one.count, one.body)
                for of_job in self._outputs.values()
                for one in of_job
            ]
            inputs = [(job, first, body) for (job, first), body in self._inputs.items()]
            whole = _Dump(
                self._lease,
                [one.body for one in self._records],
                outputs,
                inputs,
                list(self._replies.items()),
                [(key, list(parts)) for key, parts in self._pieces.items()],
            )
        return partial(_packed, whole)

    def load(self, dumped: bytes) -> None:
        """Replace the state by one that `dump` returned."""
        dump = msgspec.msgpack.decode(dumped, type=_Dump)
        with self._lock:
            self._fill(dump)

    def _execute(self, command: Command) -> Reply:
        if isinstance(command, Piece):
            return self._assemble(command)
        if isinstance(command, Acquire):
            return self._acquire(command)
        last = self._lease
        if last is None or last.epoch != command.epoch:
            now = "there is none" if last is None else f"{last.owner!r} is, in epoch {last.epoch}"
            return f"epoch {command.epoch} is over: this process is no longer the coordinator; {now}"
        if isinstance(command, Renew):
            self._take(msgspec.structs.replace(last, lease_s=command.lease_s))
            return ""
        if isinstance(command, Drop):
            self._drop(set(command.jobs))
            return ""
        self._add(command.records)
        for row in command.outputs:
            self._put(Output(*row))
        self._inputs.update({(job, first): body for job, first, body in command.inputs})
        return ""

    def _add(self, bodies: list[bytes]) -> None:
        for body in bodies:
            self._numbered += 1
            self._records.append(_Numbered(self._numbered, job_of(body), body))

    def _drop(self, jobs: set[str]) -> None:
        self._records = [one for one in self._records if one.job not in jobs]
        self._inputs = {place: body for place, body in self._inputs.items() if place[0] not in jobs}
        for job in jobs:
            self._outputs.pop(job, None)
            self._done.pop(job, None)

    def _acquire(self, command: Acquire) -> int:
        last = self._lease
        if command.serial != (0 if last is None else last.serial):
            return 0
        epoch = 1 if last is None else last.epoch + 1
        self._take(_Taken(command.owner, epoch, command.address, command.lease_s, command.serial))
        self._pieces.clear()  # of the last owner, which will not complete them
        return epoch

    def _take(self, lease: _Taken) -> None:
        lease.serial += 1
        self._lease, self._since_s = lease, time.monotonic()

    def _assemble(self, piece: Piece) -> Reply:
        pieces = self._pieces.setdefault(piece.whole, [])
        if piece.number != len(pieces):
            return REFUSED
        pieces.append(piece.body)
        if len(pieces) < piece.count:
            return ""
        del self._pieces[piece.whole]
        try:
            whole = _COMMAND.decode(b"".join(pieces))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return REFUSED
        return REFUSED if isinstance(whole, Piece) else self._execute(whole)

    def _put(self, output: Output) -> None:
        done = self._done.setdefault(output.job, set())
        if output.batch not in done:
            done.add(output.batch)
            insort(self._outputs.setdefault(output.job, []), output, key=_first)


def _packed(dump: _Dump) -> Iterator[bytes]:
    """Yield a packed `_Dump` in pieces."""
    yield array_head(len(msgspec.structs.fields(_Dump))) + msgspec.msgpack.encode(dump.lease)
    yield from packed_list(dump.records)
    for rows in (dump.outputs, dump.inputs):
        yield from packed_list(rows, together=1)
    yield from packed_list(dump.replies)
    yield from packed_list(dump.pieces, together=1)


def _number(record: _Numbered) -> int:
    return record.number


def _first(output: Output) -> int:
    return output.first

"""The journal on three voters (Raft, by pysyncobj). The journal is available while two voters are, on any machines."""

from __future__ import annotations

import contextlib
import secrets
import struct
import time
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from chimera.core.errors import ConfigurationError, DataError
from chimera.core.private import make_folder
from chimera.engines.http import wire
from chimera.inference.journal.journal import Fenced, Journal, Lease, Output
from chimera.inference.journal.raft.connection import listen, refuses
from chimera.inference.journal.raft.library import FAIL_REASON, AsyncResult
from chimera.inference.journal.raft.snapshot import Entry, SnapshotWriter, read, synchronize
from chimera.inference.journal.raft.state import Acquire, Append, Command, Drop, Piece, RaftState, Renew, Reply
from chimera.inference.journal.raft.voter import PIECE_BYTES, REGULAR, Voter, settings
from chimera.inference.journal.records import Record

_TRY_S = 0.5
_RETRY_DELAY_S = 0.01
_ASK_S = 1.0
_LEASE_S = 1.0
"""Time limit of acquiring or reading the lease, which candidates repeat; they must stop soon after SIGTERM."""
_WRITE_S = _READ_S = 5.0
_PAGE = 500
_RECORD: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


class NoMajority(Fenced):
    """No majority answered in time. Whether a write is kept is unknown until the next coordinator reads the journal."""


class RaftJournal(Journal):
    """The journal as a voter, or as a follower without a vote.

    Each voter keeps the whole journal in memory, and a log on its disk, which shortens recovery after a restart. Writes do not
    wait for the disk: acknowledged writes are lost if two voters' *machines* lose power at once.

    Parameters
    ----------
    voters : addresses of the three voters, ``host:port``.
    own : address of this process's voter; None for a follower.
    token : token of the cluster.
    folder : folder of this process alone, for its log, or for a follower's snapshot; it is created if it does not exist.

    Raises
    ------
    ConfigurationError : ``own`` is not a voter, its address cannot be used, or the folder cannot be written.
    DataError : the snapshot or the log in the folder is damaged.
    """

    def __init__(self, voters: Sequence[str], own: str | None, token: str, folder: Path) -> None:
        if own is not None and own not in voters:
            raise ConfigurationError(f"{own!r} is not one of the voters ({', '.join(voters)})")
        self._state = RaftState()
        listener = None
        try:
            if own is not None:
                listener = listen(own)
            make_folder(folder)
        except OSError as error:
            if listener is not None:
                listener.close()
            who = "a follower" if own is None else f"voter {own}"
            raise ConfigurationError(f"{who} cannot start: {error}") from error
        self._snapshot = SnapshotWriter(self._snapshot_written)
        state, log = folder / "state", None if own is None else folder / "log"
        conf = settings(
            serializer=self._save, serializeChecker=self._snapshot.state,
            deserializer=self._restore,  # else pysyncobj would unpickle the snapshot that a voter sends
            fullDumpFile=str(state), journalFile=None if log is None else str(log),
        )  # fmt: skip
        others, reading = [voter for voter in voters if voter != own], state
        try:
            # pysyncobj logs a damaged snapshot only, and the voter would vote, and could become the leader without its state
            self._restored = self._load(state) if state.exists() else None
            reading = log or state
            self._voter = Voter(self._state, own, others, conf, listener, token, self._restored)
        except (DataError, msgspec.MsgspecError, RecursionError, ValueError, struct.error) as error:
            if listener is not None:
                listener.close()
            raise DataError(
                f"{reading} is damaged ({error}): while both other voters are up, move {folder} away; this voter then gets "
                "the journal from them"
            ) from error

    def acquire(self, owner: str, address: str, lease_s: float) -> Lease | None:  # noqa: D102
        try:
            self._catch_up(_LEASE_S)
            last, serial = self._state.lease()
            if last is not None and last.left_s > 0 and not self._has_ended(last):
                return None
            epoch = self._submit(Acquire(_new_id(), owner, address, lease_s, serial), _LEASE_S)
        except NoMajority:
            return None
        return Lease(owner, int(epoch), address, lease_s) if epoch else None

    def renew(self, epoch: int, lease_s: float) -> None:  # noqa: D102
        self._write(Renew(_new_id(), epoch, lease_s))

    def release(self, epoch: int) -> None:  # noqa: D102
        with contextlib.suppress(NoMajority):  # the lease ends by itself
            self._submit(Renew(_new_id(), epoch, 0.0), _LEASE_S)

    def lease(self) -> Lease | None:  # noqa: D102
        self._catch_up(_LEASE_S)
        return self._state.lease()[0]

    def append(  # noqa: D102
        self,
        epoch: int,
        records: Sequence[Record],
        *,
        outputs: Sequence[Output] = (),
        inputs: Sequence[tuple[str, int, bytes]] = (),
    ) -> None:
        bodies = [msgspec.json.encode(record) for record in records]
        results = [(one.job, one.batch, one.first, one.count, one.body) for one in outputs]
        self._write(Append(_new_id(), epoch, bodies, results, list(inputs)))

    def drop(self, epoch: int, jobs: Collection[str]) -> Iterator[None]:  # noqa: D102
        self._write(Drop(_new_id(), epoch, list(jobs)))
        yield

    def records(self) -> Iterator[Record]:  # noqa: D102
        self._catch_up()
        last = 0
        while found := self._state.records(last, _PAGE):
            for number, body in found:
                try:
                    yield _RECORD.decode(body)
                except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                    raise DataError(f"the voters' journal: record {number} is damaged: {error}") from error
            last = found[-1][0]

    def outputs(self, job: str, first: int = 0) -> Iterator[Output]:  # noqa: D102
        self._catch_up()
        while found := self._state.outputs(job, first, _PAGE):
            yield from found
            first = found[-1].first + found[-1].count

    def queries(self, job: str, first: int, count: int) -> list[Any]:  # noqa: D102
        starts = [start for start, _ in self._state.chunks(job)]
        found: list[Any] = []
        at = bisect_right(starts, first) - 1
        if at < 0:
            raise DataError(f"the voters' journal has no queries {first} to {first + count} of job {job!r}")
        begin = starts[at]
        while len(found) < first - begin + count:
            found += self.chunk(job, starts[at])
            at += 1
        return found[first - begin : first - begin + count]

    def chunks(self, job: str) -> list[tuple[int, int]]:  # noqa: D102
        return self._state.chunks(job)

    def chunk(self, job: str, first: int) -> list[Any]:  # noqa: D102
        found: list[Any] = wire.unpack(self._state.body(job, first))
        return found

    def jobs_with_queries(self) -> set[str]:  # noqa: D102
        self._catch_up()
        return self._state.jobs_with_queries()

    def close(self) -> None:  # noqa: D102
        self._voter.destroy_synchronous()

    def _has_ended(self, lease: Lease) -> bool:
        """Return whether the owner of a lease is known to be dead. The check follows the end of a connection of this voter."""
        return time.monotonic() < self._voter.transport.disconnected_s + _ASK_S and refuses(lease.address)

    def _write(self, command: Command) -> None:
        """Submit a command, in pieces if it is large.

        Raises
        ------
        Fenced : the command was refused, because the epoch is over.
        """
        body = msgspec.msgpack.encode(command)
        cuts = range(0, len(body), PIECE_BYTES)
        pieces = [body[cut : cut + PIECE_BYTES] for cut in cuts]
        reason: Reply = ""
        if len(pieces) == 1:
            reason = self._submit(command, _WRITE_S)
        for number, piece in enumerate(pieces if len(pieces) > 1 else ()):
            reason = self._submit(Piece(_new_id(), command.id, number, len(pieces), piece), _WRITE_S)
            if reason:
                break
        if reason:
            raise Fenced(str(reason))

    def _submit(self, command: Command, patience_s: float) -> Reply:
        """Return the reply to a command. The command is retried until there is one; the state executes it once."""
        body = REGULAR + msgspec.msgpack.encode(command)
        deadline_s = time.monotonic() + patience_s
        while True:
            answer = AsyncResult()
            self._voter._applyCommand(body, answer.onResult)
            left_s = deadline_s - time.monotonic()
            if answer.event.wait(min(_TRY_S, max(left_s, 0.0))) and answer.error == FAIL_REASON.SUCCESS:
                reply: Reply = answer.result
                return reply
            if time.monotonic() + _RETRY_DELAY_S > deadline_s:
                raise NoMajority(f"the voters have not agreed within {patience_s:g} s: two of the three must be up")
            time.sleep(_RETRY_DELAY_S)

    def _catch_up(self, patience_s: float = _READ_S) -> None:
        """Wait until this process has applied the entries that the leader has committed.

        A leader may detect a second late that it has lost its lead, so a read may be that old. Writes do not depend on
        reads.

        Raises
        ------
        NoMajority : there is no leader, or its entries have not arrived in time. The local state may lack any of them.
        """
        deadline_s = time.monotonic() + patience_s
        index = self._committed(deadline_s)
        while index is None or self._voter.raftLastApplied < index:
            if time.monotonic() >= deadline_s:
                raise NoMajority(
                    f"the voters' journal cannot be read: no leader's entries arrived within {patience_s:g} s"
                )
            time.sleep(_RETRY_DELAY_S if index is None else 0.001)
            if index is None:
                index = self._committed(deadline_s)

    def _committed(self, deadline_s: float) -> int | None:
        """Return the commit index of the leader; None if there is no leader, or it does not answer."""
        leader = self._voter._getLeader()
        if leader is None:
            return None
        if leader == self._voter.selfNode:
            return self._voter.committed()
        left_s = deadline_s - time.monotonic()
        return self._voter.transport.commit_index_of(leader, min(_TRY_S, max(left_s, 0.0)))

    def _save(self, file: str, log: tuple[Any, ...]) -> None:
        """Start to write a snapshot: the state, and the last two entries of the log.

        pysyncobj would rename a ``.tmp`` file when this returns. There is none: `SnapshotWriter` renames the complete file.
        """
        last, before, _ = log
        self._snapshot.begin(Path(file.removesuffix(".tmp")), last, before, self._state.snapshot())

    def _snapshot_written(self, size: int) -> None:
        self._voter.snapshot_written(size)

    def _restore(self, file: str) -> tuple[Any, ...]:
        """Load a snapshot: that which the constructor has loaded, or else one that the leader has sent."""
        entries, self._restored = self._restored, None
        if entries is None:
            received = Path(file)
            synchronize(received)  # before pysyncobj clears the log
            synchronize(received.parent)
            entries = self._load(received)
        return *entries, set()

    def _load(self, file: Path) -> tuple[Entry, Entry]:
        """Load the state from a snapshot, and return the last two entries of the log, the last one first."""
        last, before, dumped = read(file)
        self._state.load(dumped)
        return last, before


def _new_id() -> bytes:
    return secrets.token_bytes(12)

"""Submissions: jobs whose queries arrive in pieces, until they are accepted."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from chimera.core.errors import ConflictError, DataError
from chimera.inference import input_files
from chimera.inference.journal import records
from chimera.inference.pieces import MAX_BYTES, MAX_QUERIES, packed_chunks

if TYPE_CHECKING:
    from chimera.inference.coordinator.coordinator import Coordinator

MAX_FILES = 10_000
"""Maximum number of files in which the queries of a job stay."""
MAX_OPEN = 64
"""Maximum number of submissions that have begun and are not accepted."""
IDLE_S = 24 * 3600.0
"""A submission without a request for this many seconds is deleted."""


class _Open:
    """A submission, as far as its queries have arrived; ``lock`` serializes its pieces."""

    def __init__(self, begun: records.Begun, received: int, size: int) -> None:
        self.begun, self.received, self.size = begun, received, size
        self.lock, self.closed = threading.Lock(), False


class Submissions:
    """The submissions that are not accepted as jobs yet.

    The client chooses the key of a submission, so that each request may be repeated at this coordinator or its
    successor. The successor finds the submission and its queries in the journal. All threads but the main thread of the
    coordinator may call the methods, unless a method says otherwise.
    """

    def __init__(self, leader: Coordinator) -> None:
        self._leader = leader
        self._open: dict[str, _Open] = {}
        self._lock = threading.Lock()
        self._used_s: dict[str, float] = {}

    def begin(self, job: records.Accepted) -> tuple[str | None, int]:
        """Begin or continue the submission of a job.

        Parameters
        ----------
        job : the job, without its number, its time and its number of queries; the default of its name is its number.

        Returns
        -------
        The number of the job if it is accepted already, else None; and the number of queries that have arrived.

        Raises
        ------
        ConflictError : the key is that of another job's submission, or there are `MAX_OPEN` submissions.
        NoSpaceError : the disk is nearly full, and the submission is new.
        """

        def apply() -> str | None:
            held = self._leader.scheduler.submissions
            number = self._job_of(job.key)
            known = self._leader.scheduler.job(number).accepted if number is not None else None
            if known is None and job.key in held:
                known = held[job.key].accepted
            if known is not None:
                if not _is_same(job, known):
                    raise ConflictError(
                        f"the key {job.key!r} is that of a submission with another model or other options"
                    )
                return number
            self._leader.check_space()
            if len(held) >= MAX_OPEN:
                raise ConflictError(f"{MAX_OPEN} submissions are unfinished already: finish one, or try again later")
            number = self._leader.new_number()
            accepted = _numbered(job, number)
            self._leader.record(records.Begun(number, job.key, accepted, self._leader.now_s()))
            self._leader.prepare(job.model)
            return None

        number = self._leader.call(apply)
        if number is not None:
            return number, self._leader.call(lambda: self._leader.scheduler.job(number).accepted.queries)
        opened = self._find(job.key)
        return None, 0 if opened is None else opened.received

    def put(self, key: str, first: int, queries: Sequence[Any]) -> int:
        """Store queries durably, and return how many have arrived. Queries that have arrived before are ignored.

        Parameters
        ----------
        first : index of the first of these queries.

        Raises
        ------
        DataError : there is no such submission, queries before ``first`` are missing, or the job is too large.
        NotCoordinator : this process is no longer the coordinator.
        NoSpaceError : the disk is full, or nearly full.
        """
        opened = self._find(key)
        if opened is None:
            return self._arrived_before(key, first + len(queries))
        with opened.lock:
            if first > opened.received:
                raise DataError(f"the next query is number {opened.received}, not {first}")
            for _, count, body in packed_chunks(queries[opened.received - first :]):
                if opened.closed:
                    return self._arrived_before(key, first + len(queries))
                if opened.received + count > MAX_QUERIES or opened.size + len(body) > MAX_BYTES:
                    raise DataError(
                        f"a job has at most {MAX_QUERIES} queries and {MAX_BYTES} bytes: submit several jobs, or write the "
                        "data to files and submit their names"
                    )
                self._leader.store_queries(opened.begun.job, opened.received, body)
                opened.received += count
                opened.size += len(body)
            self._used_s[key] = time.monotonic()
            return opened.received

    def accept(
        self, key: str, count: int, files: Sequence[records.InputFile] = (), chunks: Sequence[tuple[int, int]] = ()
    ) -> str:
        """Accept the job, which has ``count`` queries, and return its number.

        Parameters
        ----------
        files : the files in which the queries stay; default: none, since the queries have arrived.
        chunks : with files: index of the first query, and bytes, of pieces of at most about 1 MiB or one query.

        Raises
        ------
        DataError : there is no such submission, another number of queries has arrived, or a file cannot be read.
        NoSpaceError : the disk is nearly full.
        """
        opened = self._find(key)
        if opened is None:
            return self._accepted(key)
        with opened.lock:
            if opened.closed:
                return self._accepted(key)
            if not count:
                raise DataError("a job needs at least one query")
            self._leader.check_space()
            if files:
                self._check_files(count, files, chunks)
            elif opened.received != count:
                raise DataError(f"{opened.received} queries of {count} have arrived")

            def apply() -> str:
                if (
                    key not in self._leader.scheduler.submissions
                ):  # a request whose answer came too late has accepted it
                    return self._leader.scheduler.job(opened.begun.job).id
                more: dict[str, Any] = {"files": list(files), "chunks": list(chunks)} if files else {}
                job = msgspec.structs.replace(opened.begun.accepted, queries=count, at_s=self._leader.now_s(), **more)
                self._leader.record(job)
                return job.job

            number = self._leader.call(apply)
            self._close(key)
            return number

    def _check_files(self, count: int, files: Sequence[records.InputFile], chunks: Sequence[tuple[int, int]]) -> None:
        if not self._leader.reads_files:
            raise DataError("this cluster reads no files of clients: copy the queries")
        if len(files) > MAX_FILES or count > MAX_QUERIES or any(file.queries < 1 for file in files):
            raise DataError(f"a job has at most {MAX_FILES} files with {MAX_QUERIES} queries, each with at least one")
        firsts = [first for first, _ in chunks]
        increasing = all(before < after for before, after in itertools.pairwise(firsts))
        if sum(file.queries for file in files) != count or firsts[:1] != [0] or firsts[-1] >= count or not increasing:
            raise DataError("the chunks or the files do not match the number of queries")
        for file in files:
            input_files.check_unchanged(file)

    def discard(self, key: str) -> None:
        """Delete a submission and its queries; do nothing if there is none."""

        def apply() -> None:
            if key in self._leader.scheduler.submissions:
                self._drop(key)

        self._leader.call(apply)

    def drop_idle(self) -> None:
        """Delete the submissions that no client has continued for `IDLE_S`. Main thread only."""
        now_s = time.monotonic()
        for key in list(self._leader.scheduler.submissions):
            if now_s > self._used_s.setdefault(key, now_s) + IDLE_S:
                self._drop(key)

    def _drop(self, key: str) -> None:
        number = self._leader.scheduler.submissions[key].job
        self._close(key)
        self._leader.record(records.Dropped(number, self._leader.now_s()))
        self._leader.after_write(lambda: self._leader.discard_queries(number))

    def _find(self, key: str) -> _Open | None:
        """Return a submission; None if there is none, or if its job is accepted."""
        with self._lock:
            opened = self._open.get(key)
        if opened is not None:
            return opened
        begun = self._leader.call(lambda: self._leader.scheduler.submissions.get(key))
        if begun is None:
            return None
        found = _Open(begun, *self._leader.journal.stored_queries(begun.job))
        with self._lock:
            return self._open.setdefault(key, found)

    def _close(self, key: str) -> None:
        with self._lock:
            opened = self._open.pop(key, None)
        if opened is not None:
            opened.closed = True
        self._used_s.pop(key, None)

    def _arrived_before(self, key: str, count: int) -> int:
        self._accepted(key)
        return count

    def _accepted(self, key: str) -> str:
        number = self._leader.call(lambda: self._job_of(key))
        if number is None:
            raise DataError(f"there is no submission with the key {key[:100]!r}: begin it again")
        return number

    def _job_of(self, key: str) -> str | None:
        jobs = reversed(self._leader.scheduler.jobs.values())
        return next((job.id for job in jobs if job.accepted.key == key), None)


def _numbered(job: records.Accepted, number: str) -> records.Accepted:
    return msgspec.structs.replace(job, job=number, name=job.name or number)


def _is_same(job: records.Accepted, begun: records.Accepted) -> bool:
    """Compare as in the journal, which has lists in place of tuples, without the fields that are set at the acceptance."""
    as_begun = msgspec.structs.replace(begun, queries=0, at_s=0.0, files=[], chunks=[])
    return msgspec.json.encode(_numbered(job, begun.job)) == msgspec.json.encode(as_begun)

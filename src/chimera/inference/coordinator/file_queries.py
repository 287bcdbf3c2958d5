"""Queries of a job that stay in their files: the coordinator reads them when a batch is sent."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from chimera.core.errors import DataError, UnavailableError
from chimera.inference import input_files
from chimera.inference.journal.records import InputFile
from chimera.inference.pieces import size_of

_WINDOW_BYTES = 32 << 20
"""Queries kept in memory behind the last one, so that batches that are sent in another order need no second reading."""


class FileQueries:
    """The queries of several files, one after the other. Any thread may call the methods.

    Reading is fast in the order of the queries. A query far behind the last one makes the reader start its file again.

    Parameters
    ----------
    files : the files, as they were when the job was submitted.
    """

    def __init__(self, files: Sequence[InputFile]) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._rest: Iterator[Any] = iter(())
        self._window: deque[Any] = deque()
        self._first = self._size = 0  # start and size of the window
        self._is_open = self._has_ended = False

    def read(self, first: int, count: int) -> list[Any]:
        """Return ``count`` queries, from number ``first`` on.

        Raises
        ------
        DataError : a file is missing or has changed since the job was submitted, or cannot be read.
        UnavailableError : `close` was called, or a file cannot be read now, for instance because too many files are open.
        """
        try:
            with self._lock:
                return self._read(first, count)
        finally:
            self._close_after_end()

    def _read(self, first: int, count: int) -> list[Any]:
        if not self._is_open or first < self._first:
            self._open(first)
        while self._first + len(self._window) < first + count:
            if self._has_ended:
                raise UnavailableError("the queries are not needed any more")
            try:
                query = next(self._rest, self)
            except BaseException:
                self._close()  # else the next read would return the queries of the next file
                raise
            if query is self:
                self._close()
                raise DataError(f"{self._files[-1].path} has fewer queries than when the job was submitted")
            self._window.append(query)
            self._size += size_of(query)
            while self._size > _WINDOW_BYTES and self._first < first:
                self._size -= size_of(self._window.popleft())
                self._first += 1
        at = first - self._first
        return list(itertools.islice(self._window, at, at + count))

    def read_or_none(self, first: int, count: int) -> list[Any]:
        """Do what `read` does, but return None for each query if that fails."""
        try:
            return self.read(first, count)
        except (DataError, UnavailableError):
            return [None] * count

    def close(self) -> None:
        """Close the open file permanently. Do not wait for a reader in another thread: that thread then closes the file."""
        self._has_ended = True
        self._close_after_end()

    def _close_after_end(self) -> None:
        if self._has_ended and self._lock.acquire(blocking=False):
            try:
                self._close()
            finally:
                self._lock.release()

    def _open(self, first: int) -> None:
        """Begin with the file that has query ``first``."""
        self._close()
        begin = 0
        for number, file in enumerate(self._files):
            if first < begin + file.queries:
                rest = itertools.chain.from_iterable(map(input_files.read_unchanged, self._files[number:]))
                self._rest, self._first, self._is_open = rest, begin, True
                return
            begin += file.queries
        raise DataError(f"the job has {begin} queries, no query {first}")

    def _close(self) -> None:
        self._rest, self._is_open = iter(()), False  # the generators close their files
        self._window.clear()
        self._first = self._size = 0

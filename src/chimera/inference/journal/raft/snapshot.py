"""A voter's copy of its state on its disk, written beside all else: it takes longer than an election waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from chimera.core.private import write
from chimera.inference.journal.raft.library import SERIALIZER_STATE

Entry = tuple[bytes, int, int]


class SnapshotWriter:
    """Writes a copy in a thread; pysyncobj asks now and then how far it is, and cuts its log short after that.

    Parameters
    ----------
    written : called with the size of each copy; 0 if it could not be written.
    """

    def __init__(self, written: Callable[[int], None]) -> None:
        self._written = written
        self._thread: threading.Thread | None = None
        self._whole = False

    def begin(self, file: Path, last: Entry, before: Entry, pack: Callable[[], bytes]) -> None:
        """Write a state, and the two entries of the log that it ends with."""
        self._whole = False
        self._thread = threading.Thread(target=self._write, args=(file, last, before, pack), name="chimera-raft-copy")
        self._thread.start()

    def state(self) -> int:
        """Return one of pysyncobj's words; that it has ended is said once."""
        if self._thread is None:
            return int(SERIALIZER_STATE.NOT_SERIALIZING)
        if self._thread.is_alive():
            return int(SERIALIZER_STATE.SERIALIZING)
        self._thread = None
        return int(SERIALIZER_STATE.SUCCESS if self._whole else SERIALIZER_STATE.FAILED)

    def _write(self, file: Path, last: Entry, before: Entry, pack: Callable[[], bytes]) -> None:
        draft = file.with_name(f"{file.name}.draft")
        body = msgspec.msgpack.encode((last, before, pack()))
        try:
            write(draft, body)
            draft.replace(file)
        except OSError:  # the log stays as it is until the next copy
            self._written(0)
            return
        self._written(len(body))
        self._whole = True

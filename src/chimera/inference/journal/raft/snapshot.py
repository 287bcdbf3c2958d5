"""Snapshots of a voter's state, written in a thread, because writing takes longer than an election timeout.

A snapshot is on the disk before the log that it replaces is cut: after a loss of power, a voter has one of the two.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from chimera.core.private import opener
from chimera.inference.journal.raft.library import SERIALIZER_STATE
from chimera.inference.journal.raft.packing import array_head, bytes_head

Entry = tuple[bytes, int, int]


def synchronize(path: Path) -> None:
    """Return once a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(file: Path) -> tuple[Entry, Entry, bytes]:
    """Return the content of a snapshot: the last two entries of the log, the last one first, and the packed state.

    Raises
    ------
    MsgspecError : the file is damaged.
    """
    return msgspec.msgpack.decode(file.read_bytes(), type=tuple[Entry, Entry, bytes])


class SnapshotWriter:
    """Writes snapshots in a thread. pysyncobj polls its state, and truncates the log after a success.

    Parameters
    ----------
    written : called with the size of each snapshot in bytes; 0 if it could not be written.
    """

    def __init__(self, written: Callable[[int], None]) -> None:
        self._written = written
        self._thread: threading.Thread | None = None
        self._whole = False

    def begin(self, file: Path, last: Entry, before: Entry, pack: Callable[[], Iterable[bytes]]) -> None:
        """Start to write a snapshot: the state, packed in pieces, and the last two entries of the log."""
        self._whole = False
        self._thread = threading.Thread(target=self._write, args=(file, last, before, pack), name="chimera-raft-copy")
        self._thread.start()

    def state(self) -> int:
        """Return one of pysyncobj's states; the end of a snapshot is returned once."""
        if self._thread is None:
            return int(SERIALIZER_STATE.NOT_SERIALIZING)
        if self._thread.is_alive():
            return int(SERIALIZER_STATE.SERIALIZING)
        self._thread = None
        return int(SERIALIZER_STATE.SUCCESS if self._whole else SERIALIZER_STATE.FAILED)

    def _write(self, file: Path, last: Entry, before: Entry, pack: Callable[[], Iterable[bytes]]) -> None:
        draft = file.with_name(f"{file.name}.draft")
        entries = msgspec.msgpack.encode(last) + msgspec.msgpack.encode(before)
        try:
            with open(draft, "wb", opener=opener) as written:
                written.write(array_head(3) + entries)
                begin = written.tell()
                written.write(bytes_head(0))  # the size is known at the end: a voter has no memory for a second state
                size = sum(written.write(piece) for piece in pack())
                written.seek(begin)
                written.write(bytes_head(size))
            synchronize(draft)
            draft.replace(file)
            synchronize(file.parent)
        except (OSError, struct.error):  # e.g. more than 4 GiB; the log is kept until the next snapshot
            draft.unlink(missing_ok=True)
            self._written(0)
            return
        self._written(size)
        self._whole = True

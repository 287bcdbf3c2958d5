"""Files that grow during a run, in an object store.

Objects cannot be extended. A file of up to `SEGMENT_BYTES` is uploaded whole, under its own name. A larger one is uploaded as
segments ``NAME.00000``, ``NAME.00001``, ...: each has `SEGMENT_BYTES` except the last one, which alone is uploaded again when
the file has grown. At the end of a run the whole file replaces its segments.

After a crash between two uploads a store may hold segments of different age. Since a resumed run truncates each file to its
length at the checkpoint and then only extends it, all of them agree up to that length.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from chimera.training.artifacts.object_store import ObjectStore

SEGMENT_BYTES = 8 << 20
_SEGMENT = re.compile(r"(.+)\.(\d{5,9})", re.DOTALL)


class GrowingFile:
    """Uploads one file that only grows.

    Parameters
    ----------
    store : the folder of the run in its store.
    path : the file, which need not exist yet.
    """

    def __init__(self, store: ObjectStore, path: Path) -> None:
        self._store, self._path = store, path
        self._complete = 0  # segments that are full and in the store
        self._sent: tuple[int, bool] | None = None  # its length at the last upload, and whether it was uploaded whole
        self._first = True

    def send(self, *, whole: bool) -> None:
        """Upload the new bytes; with ``whole``, replace the segments by one file.

        Raises
        ------
        StoreError : an upload failed. The next call continues with this upload.
        """
        if not self.pending(whole=whole):
            return
        size = self._path.stat().st_size
        if whole and size > SEGMENT_BYTES:
            self._store.put_file(self._path, self._path.name)
        else:
            with self._path.open("rb") as file:
                if size <= SEGMENT_BYTES:
                    self._store.put(file.read(size), self._path.name)
                else:
                    self._send_segments(file.fileno(), size)
        if self._first or whole:
            self._delete_segments(0 if whole else -(-size // SEGMENT_BYTES) if size > SEGMENT_BYTES else 0)
            self._first = False
        self._sent = size, whole or size <= SEGMENT_BYTES

    def pending(self, *, whole: bool) -> bool:
        """Return whether the store lacks a part of the file; with ``whole``, whether it lacks the file in one piece."""
        if not self._path.exists():
            return False
        return self._sent is None or self._sent[0] != self._path.stat().st_size or (whole and not self._sent[1])

    def _send_segments(self, file: int, size: int) -> None:
        while (begin := self._complete * SEGMENT_BYTES) < size:
            content = os.pread(file, min(SEGMENT_BYTES, size - begin), begin)
            self._store.put(content, f"{self._path.name}.{self._complete:05d}")
            if len(content) < SEGMENT_BYTES:
                break
            self._complete += 1

    def _delete_segments(self, first: int) -> None:
        """Delete segments from this number on; an earlier process may have written more segments than the file now has."""
        names = _segments(self._store.sizes(), self._path.name)
        self._store.delete(name for number, name in names.items() if number >= first)


def _segments(sizes: Mapping[str, int], name: str) -> dict[int, str]:
    """Return the names of a file's segments by number, in order."""
    found = [(int(match[2]), each) for each in sizes if (match := _SEGMENT.fullmatch(each)) and match[1] == name]
    return dict(sorted(found))


def segments_of(sizes: Mapping[str, int], name: str) -> list[str]:
    """Return the segments that hold a file, in order; empty if the store has the file in one piece or lacks it."""
    held: list[str] = []
    for number, segment in _segments(sizes, name).items():
        if number != len(held):
            break
        held.append(segment)
        if sizes[segment] != SEGMENT_BYTES:  # the last one; others would be of an earlier process
            break
    return held if sum(sizes[segment] for segment in held) > sizes.get(name, -1) else []


def is_of(name: str, files: tuple[str, ...]) -> bool:
    """Return whether an object is one of these files, or a segment of one."""
    match = _SEGMENT.fullmatch(name)
    return name in files or (match is not None and match[1] in files)

"""The guard of the disk with a server's files: it warns before the disk is full, and refuses new work in time."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from chimera.core.errors import NoSpaceError

WARN_BYTES, WARN_SHARE, LEAST_WARN_BYTES = 1 << 30, 0.1, 8 << 20
"""The guard warns below this free space: the smaller one of a size and a share of the disk; at least the last number."""
RESERVED_BYTES, RESERVED_SHARE, LEAST_RESERVED_BYTES = 256 << 20, 0.05, 4 << 20
"""New work is refused below this free space, so that results and states of accepted jobs can still be stored."""
_FULL_BYTES = 64 << 10


class DiskGuard:
    """Watches the free space of one disk.

    Parameters
    ----------
    folder : a folder of that disk.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._announced = 0  # bytes of files that are being written, and are not on the disk yet

    def warning(self) -> str:
        """Return a phrase if little space is left; empty if there is enough, or if it is unknown."""
        free, total = self._space()
        if free >= min(WARN_BYTES, max(WARN_SHARE * total, LEAST_WARN_BYTES)):
            return ""
        return f"the disk is nearly full: {_size(free)} are left"

    def is_full(self) -> bool:
        """Return whether not even a page of a file can be written."""
        return self._space()[0] < _FULL_BYTES

    def check_submission(self, more: int = 0) -> None:
        """Check that new work leaves the space that is reserved for accepted jobs.

        Parameters
        ----------
        more : bytes that the new work will write at once.

        Raises
        ------
        NoSpaceError : the new work does not leave it. The message states the free space and the limit.
        """
        free, total = self._space()
        reserved = int(min(RESERVED_BYTES, max(RESERVED_SHARE * total, LEAST_RESERVED_BYTES)))
        if free - self._announced - more < reserved:
            wanted = f", the job needs {_size(more)}" if more else ""
            others = f", files that are being sent need {_size(self._announced)}" if self._announced else ""
            raise NoSpaceError(
                f"the disk of {self._folder} is nearly full: {_size(free)} are left{wanted}{others}, and {_size(reserved)} are "
                "reserved for accepted jobs: free some space, then try again"
            )

    @contextlib.contextmanager
    def announced(self, size: int) -> Iterator[Callable[[int], None]]:
        """Count a file of this size as written, until the context ends; yield a function to call after each part is written.

        Raises
        ------
        NoSpaceError : see `check_submission`; files that are written at the same time count with their missing parts.
        """
        missing = size
        with self._lock:
            self.check_submission(size)
            self._announced += size

        def wrote(count: int) -> None:
            nonlocal missing
            with self._lock:
                missing -= count
                self._announced -= count

        try:
            yield wrote
        finally:
            wrote(missing)

    def _space(self) -> tuple[int, int]:
        """Return the free and the total bytes; unknown free space counts as enough."""
        try:
            usage = shutil.disk_usage(self._folder)
        except OSError:
            return 1 << 62, 0
        return usage.free, usage.total


def _size(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"

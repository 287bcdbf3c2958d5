"""The file with the ends of leases. Their renewal writes 16 bytes in place: it waits for no lock, transaction or free space."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from chimera.core.private import FILE

_SLOT = struct.Struct("<dd")
_SLOTS = 64  # epochs; the journal fences a coordinator that is this many epochs old


class LeaseFile:
    """The ends of the leases of the last epochs, in a file beside the journal. Any thread may call the methods.

    The epoch of the cluster is in the journal only. So a coordinator that was replaced can prolong its own lease only, which is
    over.

    Raises
    ------
    OSError : the file cannot be created or written.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), FILE)
        missing = _SLOTS * _SLOT.size - os.fstat(self._file).st_size
        if missing > 0:  # write the zeros, so that a renewal on a full disk has its space
            os.pwrite(self._file, bytes(missing), _SLOTS * _SLOT.size - missing)

    def write(self, epoch: int, ends_s: float, lease_s: float) -> None:
        """Set the end of an epoch's lease, by the monotonic clock, and its duration."""
        os.pwrite(self._file, _SLOT.pack(ends_s, lease_s), epoch % _SLOTS * _SLOT.size)

    def read(self, epoch: int) -> tuple[float, float]:
        """Return the end and the duration of an epoch's lease; both 0 if they are not in the file."""
        slot = os.pread(self._file, _SLOT.size, epoch % _SLOTS * _SLOT.size)
        return _SLOT.unpack(slot) if len(slot) == _SLOT.size else (0.0, 0.0)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

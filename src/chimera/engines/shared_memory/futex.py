"""Sleeping on a word of shared memory, and waking the process that sleeps there; on Linux only."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys

_CALLS = {"x86_64": 202, "aarch64": 98}
_WAIT, _WAKE = 0, 1


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Futex:
    """The system call. Addresses are those of aligned words of 32 bits in memory that processes share.

    Parameters
    ----------
    number : its number on this machine.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._call = ctypes.CDLL(None, use_errno=True).syscall
        pointer = ctypes.c_void_p
        self._call.argtypes = (ctypes.c_long, pointer, ctypes.c_int, ctypes.c_int, pointer, pointer, ctypes.c_int)
        self._call.restype = ctypes.c_long

    @classmethod
    def of_this_system(cls) -> Futex | None:
        """Return the call; None if the system has none, or its number is not known here."""
        number = _CALLS.get(platform.machine()) if sys.platform == "linux" else None
        return None if number is None else cls(number)

    def wake(self, address: int) -> None:
        """Wake one process that sleeps on a word. Change the word before."""
        self._call(self._number, address, _WAKE, 1, None, None, 0)

    def wait(self, address: int, seen: int, timeout_s: float) -> None:
        """Sleep until a wake-up, at most ``timeout_s`` seconds, unless the word differs from ``seen``. May return earlier."""
        limit = _Timespec(int(timeout_s), int(timeout_s % 1 * 1e9))
        if self._call(self._number, address, _WAIT, seen, ctypes.byref(limit), None, 0) < 0:
            code = ctypes.get_errno()
            if code not in (errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT):
                raise OSError(code, os.strerror(code))

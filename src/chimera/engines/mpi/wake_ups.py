"""Sleeping ranks, and their wake-up by other ranks of the same machine.

A blocking receive of MPI polls without a pause, and so uses a whole core. Ranks sleep instead on words of shared memory. The
sender of a message changes the word after MPI has accepted the message. Ranks of other machines cannot wake a sleeping rank. If
there are such ranks, the rank polls with growing pauses.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import secrets
import time
from collections.abc import Sequence
from typing import Any

from chimera.engines.machine_clock import clock_of_this_machine
from chimera.engines.shared_memory.futex import Futex

_WORDS = 256
_TOKEN_BYTES = 16
_FIRST_PAUSE_S = 2e-5
_MAX_SLEEP_S = 1e-3
MESSENGER = 0
"""The word of a rank's messenger; actors use the other words."""


def word_of(actor: int) -> int:
    """Return the word on which an actor sleeps. Two actors may have the same word, and are then woken for both."""
    return 1 + actor % (_WORDS - 1)


class Pause:
    """Growing pauses between polls, up to a limit."""

    def __init__(self) -> None:
        self._next_s = _FIRST_PAUSE_S

    def next_s(self, limit_s: float) -> float:
        """Return the length of the next pause."""
        pause_s, self._next_s = min(self._next_s, limit_s), self._next_s * 1.5
        return pause_s

    def reset(self) -> None:
        """Begin again with short pauses."""
        self._next_s = _FIRST_PAUSE_S


class WakeUps:
    """The words of this rank, and those of the ranks that share its machine.

    Parameters
    ----------
    comm : communicator of all ranks, which create this object together.
    """

    def __init__(self, comm: Any) -> None:
        self._futex = Futex.of_this_system()
        self.rank = comm.rank
        self._maps: dict[int, _Words] = {}
        own = _Words.create() if self._futex is not None else None
        places: Sequence[Any] = comm.allgather(None if own is None else own.place)
        if own is not None:
            self._maps[self.rank] = own
        for rank, place in enumerate(places):
            if rank != self.rank and own is not None and place is not None and (found := _Words.open(place)):
                self._maps[rank] = found
        opened: Sequence[frozenset[int]] = comm.allgather(frozenset(self._maps))
        for rank in [rank for rank in self._maps if self.rank not in opened[rank]]:
            self._maps.pop(
                rank
            ).close_file()  # a rank of the host sees the processes of a container, but not the reverse
        for words in self._maps.values():
            words.close_file()
        self.all_near = len(self._maps) == comm.size

    def near(self, rank: int) -> bool:
        """Return whether a rank is on this machine, and can wake this one."""
        return rank in self._maps

    def wake(self, rank: int, word: int) -> None:
        """Wake the thread that sleeps on a word of a rank; do nothing for a rank of another machine."""
        words = self._maps.get(rank)
        if words is not None and self._futex is not None:
            # Two ranks may wake it at once: the time is a value that neither has written before.
            words.words[word] = time.monotonic_ns() & 0x7FFFFFFF
            self._futex.wake(words.address + 4 * word)

    def seen(self, word: int) -> int:
        """Return the value of an own word. Read it before the check whose result another rank may change."""
        own = self._maps.get(self.rank)
        return 0 if own is None else own.words[word]

    def sleep(self, word: int, seen: int, timeout_s: float) -> bool:
        """Sleep until another rank wakes it, at most ``timeout_s`` seconds; return whether one has."""
        own = self._maps.get(self.rank)
        if own is None or self._futex is None:
            time.sleep(min(timeout_s, _MAX_SLEEP_S))
            return False
        self._futex.wait(own.address + 4 * word, seen, timeout_s)
        return own.words[word] != seen


class _Words:
    """The words of one rank, in a file in memory. Its token distinguishes it from the files of other machines."""

    def __init__(self, fd: int, place: tuple[str, int, int, bytes]) -> None:
        self.place, self._fd = place, fd
        self._map = mmap.mmap(fd, 4 * _WORDS + _TOKEN_BYTES)
        view = memoryview(self._map)
        self.words, self.token = view[: 4 * _WORDS].cast("i"), view[4 * _WORDS :]
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    @classmethod
    def create(cls) -> _Words:
        fd, token = os.memfd_create("chimera-mpi"), secrets.token_bytes(_TOKEN_BYTES)
        os.ftruncate(fd, 4 * _WORDS + _TOKEN_BYTES)
        words = cls(fd, (clock_of_this_machine()[0], os.getpid(), fd, token))
        words.token[:] = token
        return words

    @classmethod
    def open(cls, place: tuple[str, int, int, bytes]) -> _Words | None:
        """Return the words of another rank; None if it is on another machine."""
        machine, pid, number, token = place
        if machine != clock_of_this_machine()[0]:
            return None
        try:
            fd = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR)
        except OSError:  # another container on this machine
            return None
        try:
            words = cls(fd, place)
        except (OSError, ValueError):
            os.close(fd)
            return None
        if words.token != token:  # another file has this number by now
            words.close_file()
            return None
        return words

    def close_file(self) -> None:
        os.close(self._fd)

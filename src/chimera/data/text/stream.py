"""An endless stream of windows with random access."""

from __future__ import annotations

import bisect
from collections import deque
from typing import Protocol

import numpy as np

from chimera.core.call import work
from chimera.core.errors import DataError
from chimera.data.text.reading.source import Reader
from chimera.data.text.reading.tokens import Part
from chimera.data.text.windows import NO_TOKENS, Assembler, Tokens, Windows

_MAX_MARKS = 4096

_SHUFFLED = 16
"""Number of blocks that are shuffled together: 4 MB of text."""


class Blocks(Protocol):
    """A source of windows, one block of the text after another."""

    def seek(self, number: int, carry: Tokens) -> None:
        """Continue with this block; ``carry`` holds the remaining tokens of the block before."""

    def next(self) -> tuple[Windows, Tokens]:
        """Return the windows of the block and its remaining tokens, and advance to the next block."""


class LocalBlocks:
    """Blocks of windows that are made on demand in this process."""

    def __init__(self, part: Part, assembler: Assembler) -> None:
        self._part, self._assembler, self._reader = part, assembler, Reader(part.source)
        self._number, self._carry = 0, NO_TOKENS

    def seek(self, number: int, carry: Tokens) -> None:
        """Continue with this block."""
        self._number, self._carry = number, carry

    def next(self) -> tuple[Windows, Tokens]:
        """Return the windows of the block and its remaining tokens."""
        clean = self._part.clean(self._reader, self._number)
        windows, carry = self._assembler.windows(clean, self._number, self._carry)
        self._number += 1
        self._carry = carry if self._number % self._part.blocks else NO_TOKENS  # no window spans two passes
        return windows, self._carry


class ShuffledBlocks:
    """Groups of consecutive blocks, with the windows of each group in random order.

    Parameters
    ----------
    blocks : source of the windows.
    seed : seed of the order, combined with the number of the group.
    """

    def __init__(self, blocks: Blocks, seed: tuple[int, ...]) -> None:
        self._blocks, self._seed, self._number = blocks, seed, 0
        self._found: list[tuple[Windows, Tokens]] = []  # the blocks of the next group that were read before an error

    def seek(self, number: int, carry: Tokens) -> None:
        """Continue with this group of blocks."""
        self._number = number
        self._found.clear()
        self._blocks.seek(number * _SHUFFLED, carry)

    def next(self) -> tuple[Windows, Tokens]:
        """Return the windows of a group, and the remaining tokens of its last block. After an error, a call continues."""
        while len(self._found) < _SHUFFLED:
            self._found.append(self._blocks.next())
        windows = np.concatenate([each for each, _ in self._found])
        np.random.default_rng([*self._seed, self._number, *b"shuffle"]).shuffle(windows)
        carry = self._found[-1][1]
        self._found.clear()
        self._number += 1
        return windows, carry


class WindowStream:
    """All windows of one part of a text, pass after pass.

    The window at each position is a function of the text, its options and the seed alone. A seek back to the start of a
    block that was read is fast; a seek ahead makes all windows before the position.

    Parameters
    ----------
    blocks : source of the windows, at its start.
    max_empty_blocks : number of consecutive blocks without a window after which `take` fails.
    name : name of the part in messages.
    """

    def __init__(self, blocks: Blocks, *, max_empty_blocks: int, name: str) -> None:
        self._blocks, self._max_empty_blocks, self._name = blocks, max_empty_blocks, name
        self._number = self._end = 0  # number of the next block, and index of the next window
        self._kept: deque[tuple[int, Windows]] = deque()  # with the index of their first window
        self._marks: list[tuple[int, int, Tokens]] = [
            (0, 0, NO_TOKENS)
        ]  # first window, block, tokens that remain from the block before

    def take(self, begin: int, count: int) -> Windows:
        """Return windows ``begin`` to ``begin + count``, shape (count, width). The caller must not change them.

        Raises
        ------
        DataError : the part has no windows, or its file cannot be read.
        ActorLost : the actor that makes the blocks is dead. A retry continues at the same position.
        """
        self._seek(begin)
        empty_blocks = 0
        while self._end < begin + count:
            windows = self._next()
            empty_blocks = 0 if len(windows) else empty_blocks + 1
            if empty_blocks >= self._max_empty_blocks:
                raise DataError(f"{self._name} has too few words for a window")
            self._kept.append((self._end - len(windows), windows))
            while self._kept and self._kept[0][0] + len(self._kept[0][1]) <= begin:
                self._kept.popleft()
        pieces = [windows[max(begin - first, 0) : max(begin + count - first, 0)] for first, windows in self._kept]
        pieces = [piece for piece in pieces if len(piece)]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _seek(self, begin: int) -> None:
        first = self._kept[0][0] if self._kept else self._end
        mark = self._marks[self._mark(begin)]
        if begin < first or (begin > self._end and mark[0] > self._end):
            self._kept.clear()
            self._end, self._number, carry = mark
            self._blocks.seek(self._number, carry)

    def _mark(self, window: int) -> int:
        """Return the index of the last mark at or before a window."""
        return bisect.bisect_right(self._marks, window, key=lambda mark: mark[0]) - 1

    def _next(self) -> Windows:
        windows, carry = self._blocks.next()
        work()  # a heartbeat
        self._number += 1
        self._end += len(windows)
        if self._number > self._marks[-1][1]:
            self._marks.append((self._end, self._number, carry))
            if len(self._marks) > _MAX_MARKS:
                del self._marks[1::2]
        return windows

"""One endless stream of windows that can be entered at any window."""

from __future__ import annotations

import bisect
from collections import deque
from typing import Protocol

import numpy as np

from chimera.core.call import work
from chimera.core.errors import DataError
from chimera.data.text.source import Reader
from chimera.data.text.tokens import Part
from chimera.data.text.windows import NO_TOKENS, Assembler, Tokens, Windows

_MOST_MARKS = 4096

_SHUFFLED = 16
"""So many blocks are shuffled together: 4 MB of text."""


class Blocks(Protocol):
    """Where windows come from, block after block of the text."""

    def seek(self, number: int, carry: Tokens) -> None:
        """Go on with this block; ``carry`` is what the one before left over."""

    def next(self) -> tuple[Windows, Tokens]:
        """Return the windows of the block, and what it leaves over; then go on to the next."""


class OwnBlocks:
    """Blocks of windows that are made here, when they are asked for."""

    def __init__(self, part: Part, assembler: Assembler) -> None:
        self._part, self._assembler, self._reader = part, assembler, Reader(part.source)
        self._number, self._carry = 0, NO_TOKENS

    def seek(self, number: int, carry: Tokens) -> None:
        """Go on with this block."""
        self._number, self._carry = number, carry

    def next(self) -> tuple[Windows, Tokens]:
        """Return the windows of the block, and what it leaves over."""
        clean = self._part.clean(self._reader, self._number)
        windows, carry = self._assembler.windows(clean, self._number, self._carry)
        self._number += 1
        self._carry = carry if self._number % self._part.blocks else NO_TOKENS  # no window reaches into the next pass
        return windows, self._carry


class ShuffledBlocks:
    """The windows of some blocks after each other, in random order.

    Parameters
    ----------
    blocks : whose windows.
    seed : of the order, with the number of the first block.
    """

    def __init__(self, blocks: Blocks, seed: tuple[int, ...]) -> None:
        self._blocks, self._seed, self._number = blocks, seed, 0

    def seek(self, number: int, carry: Tokens) -> None:
        """Go on with this group of blocks."""
        self._number = number
        self._blocks.seek(number * _SHUFFLED, carry)

    def next(self) -> tuple[Windows, Tokens]:
        """Return the windows of a group, and what its last block leaves over."""
        found = [self._blocks.next() for _ in range(_SHUFFLED)]
        windows = np.concatenate([each for each, _ in found])
        np.random.default_rng([*self._seed, self._number, *b"shuffle"]).shuffle(windows)
        self._number += 1
        return windows, found[-1][1]


class WindowStream:
    """All windows of one part of a text, pass after pass.

    What window stands where is a function of the text, its options and the seed alone. Going back is cheap where blocks
    began that it has seen; going ahead makes all windows on the way.

    Parameters
    ----------
    blocks : where they come from, standing at the beginning.
    barren : after how many blocks without a window it gives up.
    name : what messages call the part.
    """

    def __init__(self, blocks: Blocks, *, barren: int, name: str) -> None:
        self._blocks, self._barren, self._name = blocks, barren, name
        self._number = self._end = 0  # of the block that comes next, and of the window that comes next
        self._kept: deque[tuple[int, Windows]] = deque()  # by their first window
        self._marks: list[tuple[int, int, Tokens]] = [(0, 0, NO_TOKENS)]  # first window, block, left over before it

    def take(self, begin: int, count: int) -> Windows:
        """Return windows ``begin`` to ``begin + count``, shape (count, width); to be read only.

        Raises
        ------
        DataError : the part has no windows, or its file cannot be read.
        ActorLost : who makes the blocks is dead; asked again, it goes on where it was.
        """
        self._go_to(begin)
        barren = 0
        while self._end < begin + count:
            windows = self._next()
            barren = 0 if len(windows) else barren + 1
            if barren >= self._barren:
                raise DataError(f"{self._name} has too few words for a window")
            self._kept.append((self._end - len(windows), windows))
            while self._kept and self._kept[0][0] + len(self._kept[0][1]) <= begin:
                self._kept.popleft()
        pieces = [windows[max(begin - first, 0) : max(begin + count - first, 0)] for first, windows in self._kept]
        pieces = [piece for piece in pieces if len(piece)]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _go_to(self, begin: int) -> None:
        first = self._kept[0][0] if self._kept else self._end
        mark = self._marks[self._mark(begin)]
        if begin < first or (begin > self._end and mark[0] > self._end):
            self._kept.clear()
            self._end, self._number, carry = mark
            self._blocks.seek(self._number, carry)

    def _mark(self, window: int) -> int:
        """Return the place of the last mark at or before a window."""
        return bisect.bisect_right(self._marks, window, key=lambda mark: mark[0]) - 1

    def _next(self) -> Windows:
        windows, carry = self._blocks.next()
        work()  # a sign of life
        self._number += 1
        self._end += len(windows)
        if self._number > self._marks[-1][1]:
            self._marks.append((self._end, self._number, carry))
            if len(self._marks) > _MOST_MARKS:
                del self._marks[1::2]
        return windows

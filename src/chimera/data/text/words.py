"""A hash table that looks up or counts the words of clean text; its speed is limited by memory access."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

_NONE = np.empty(0, np.int32)


class WordTable:
    """Words, numbered in the order of insertion.

    Parameters
    ----------
    words : initial words, distinct, in clean-text form.
    longest : words with more letters are skipped; default no limit.
    """

    def __init__(self, words: Sequence[str] = (), longest: int | None = None) -> None:
        from chimera.data.text import kernels  # numba takes a second to import

        self._kernels = kernels
        self._longest = sys.maxsize if longest is None else longest
        self._words = 0
        self._arena = np.empty(0, np.uint8)
        self._starts, self._counts = np.zeros(1, np.int64), np.zeros(0, np.int64)
        self._slots, self._hashes = np.full(1, -1, np.int32), np.empty(1, np.uint64)
        self._grow(max(len(words), 1 << 10), max(sum(map(len, words)), 1 << 14))
        self._out = _NONE
        if words:
            self._add(np.frombuffer(" ".join(words).encode(), np.uint8), sys.maxsize)

    def __len__(self) -> int:
        return self._words

    def count(self, clean: bytes) -> None:
        """Count the words of clean text; add new ones."""
        self._add(np.frombuffer(clean, np.uint8), self._longest)

    def counted(self) -> tuple[list[str], NDArray[np.int64]]:
        """Return all words and their counts."""
        letters = self._arena[: self._starts[self._words]].tobytes().decode("ascii")
        starts = self._starts[: self._words + 1].tolist()
        return [letters[a:b] for a, b in pairwise(starts)], self._counts[: self._words].copy()

    def find(self, clean: NDArray[np.uint8]) -> NDArray[np.int32]:
        """Return the numbers of the known words of clean text, in order, and -1 for each boundary."""
        if len(self._out) <= len(clean):
            self._out = np.empty(len(clean) + 1, np.int32)
        _, written, _ = self._scan(clean, 0, self._longest, self._out)
        return self._out[:written].copy()

    def _add(self, text: NDArray[np.uint8], longest: int) -> None:
        at = 0
        while at < len(text):
            at, _, self._words = self._scan(text, at, longest, _NONE)
            if at < len(text):
                self._grow(2 * self._words, 2 * int(self._starts[self._words]) + len(text))

    def _scan(self, text: NDArray[np.uint8], at: int, longest: int, out: NDArray[np.int32]) -> Any:
        return self._kernels.scan(
            text, at, longest, self._arena, self._starts, self._slots, self._hashes, self._words, self._counts, out
        )

    def _grow(self, words: int, letters: int) -> None:
        """Grow the table to this number of words and letters; keep its content."""
        slots = np.full(1 << (2 * words + 2).bit_length(), -1, np.int32)
        hashes = np.empty(len(slots), np.uint64)
        arena, starts = np.empty(letters, np.uint8), np.zeros(words + 2, np.int64)
        counts = np.zeros(words + 2, np.int64)
        self._kernels.rehash(self._slots, self._hashes, slots, hashes)
        used = self._starts[self._words]
        arena[:used] = self._arena[:used]
        starts[: self._words + 1] = self._starts[: self._words + 1]
        counts[: self._words] = self._counts[: self._words]
        self._slots, self._hashes, self._arena, self._starts, self._counts = slots, hashes, arena, starts, counts

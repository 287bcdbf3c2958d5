"""Loops over letters and words, compiled by numba and cached on disk. This module is imported only when a text is read.

A table of words is a hash table with open addressing. ``arena`` holds the letters of all words, word k from ``starts[k]`` to
``starts[k + 1]``. ``slots`` (its size is a power of two, at most half of it is used) holds the number of the word, or -1;
``hashes`` holds the full hash of each slot.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

SPACE, BOUND_BYTE, ZERO = 32, 10, 48
BOUND = -1
"""Marks a boundary among word indices, which no window may cross."""

_OFFSET, _PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)  # FNV-1a, 64 bits


def _njit(function: Any) -> Any:
    try:
        return numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # there is no folder for the cache
        return numba.njit(nogil=True)(function)


@_njit
def _slot(hash_: Any, slots: Any) -> Any:
    return np.int64((hash_ ^ (hash_ >> np.uint64(29))) & np.uint64(len(slots) - 1))


@_njit
def scan(
    text: Any,
    at: int,
    longest: int,
    arena: Any,
    starts: Any,
    slots: Any,
    hashes: Any,
    words: int,
    counts: Any,
    out: Any,
) -> Any:
    """Scan clean text from ``at``: look up each word, or count it.

    If ``out`` has room, write the indices of known words and boundaries to it. If ``out`` is empty, count all words in
    ``counts`` and add new ones to the table; stop before a word for which the table has no room.

    Returns
    -------
    the position of the stop, the number of indices written, the number of words in the table.
    """
    adding, written, size = len(out) == 0, 0, len(text)
    while at < size:
        byte = text[at]
        if byte in (SPACE, BOUND_BYTE):
            if byte == BOUND_BYTE and not adding:
                out[written] = BOUND
                written += 1
            at += 1
            continue
        begin = at
        hash_ = (_OFFSET ^ np.uint64(byte)) * _PRIME
        at += 1
        length = 1
        if byte == ZERO:  # a number of any length
            while at < size and text[at] == ZERO:
                at += 1
        else:
            while at < size and text[at] > ZERO:
                hash_ = (hash_ ^ np.uint64(text[at])) * _PRIME
                at += 1
            length = at - begin
            if length > longest:
                continue
        slot = _slot(hash_, slots)
        word = slots[slot]
        while word >= 0:
            if hashes[slot] == hash_ and starts[word + 1] - starts[word] == length:
                place, same = starts[word], True
                for letter in range(length):
                    if arena[place + letter] != text[begin + letter]:
                        same = False
                        break
                if same:
                    break
            slot = (slot + 1) & (len(slots) - 1)
            word = slots[slot]
        if not adding:
            if word >= 0:
                out[written] = word
                written += 1
            continue
        if word < 0:
            place = starts[words]
            if words + 1 >= len(starts) or 2 * words + 2 > len(slots) or place + length > len(arena):
                return begin, written, words
            for letter in range(length):
                arena[place + letter] = text[begin + letter]
            word = words
            words += 1
            starts[words] = place + length
            slots[slot] = word
            hashes[slot] = hash_
            counts[word] = 0
        counts[word] += 1
    return at, written, words


@_njit
def rehash(slots: Any, hashes: Any, new_slots: Any, new_hashes: Any) -> None:
    """Fill a larger table from a smaller one; ``new_slots`` are all -1."""
    for old in range(len(slots)):
        if slots[old] >= 0:
            slot = _slot(hashes[old], new_slots)
            while new_slots[slot] >= 0:
                slot = (slot + 1) & (len(new_slots) - 1)
            new_slots[slot] = slots[old]
            new_hashes[slot] = hashes[old]


@_njit
def hash_rows(rows: Any, slots: Any) -> None:
    """Write the numbers of distinct rows to the hash table ``slots``, which is all -1 before."""
    for row in range(len(rows)):
        slot = _row_slot(rows[row], 0, rows.shape[1], slots)
        while slots[slot] >= 0:
            slot = (slot + 1) & (len(slots) - 1)
        slots[slot] = row


@_njit
def _row_slot(tokens: Any, begin: int, width: int, slots: Any) -> Any:
    hash_ = _OFFSET
    for place in range(begin, begin + width):
        hash_ = (hash_ ^ np.uint64(tokens[place])) * _PRIME
        hash_ ^= hash_ >> np.uint64(32)
    return _slot(hash_, slots)


@_njit
def _contains(tokens: Any, begin: int, rows: Any, slots: Any) -> Any:
    """Return whether the window that begins at ``begin`` is one of ``rows``."""
    width = rows.shape[1]
    slot = _row_slot(tokens, begin, width, slots)
    while slots[slot] >= 0:
        same = True
        for place in range(width):
            if rows[slots[slot], place] != tokens[begin + place]:
                same = False
                break
        if same:
            return True
        slot = (slot + 1) & (len(slots) - 1)
    return False


@_njit
def assemble(tokens: Any, stride: int, rows: Any, slots: Any, out: Any) -> Any:
    """Write the windows of a sequence of tokens, except those in ``rows``, to ``out``, shape (at least as many, width).

    Returns
    -------
    the number of windows written, and the number of tokens at the end that belong to the next window.
    """
    width, written, run = out.shape[1], 0, 0
    for at in range(len(tokens)):
        if tokens[at] < 0:
            run = 0
            continue
        run += 1
        if run < width:
            continue
        begin = at - width + 1
        if len(rows) == 0 or not _contains(tokens, begin, rows, slots):
            for place in range(width):
                out[written, place] = tokens[begin + place]
            written += 1
        run -= stride
    return written, run

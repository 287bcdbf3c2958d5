"""The memory layout of packed codes, common to all kernels.

Codes of ``w`` bits are cut into planes of 8, 4, 2 and 1 bits whose widths add up to w, the lowest bits first. They are packed
chunk by chunk of `CHUNK` codes, and within a chunk plane by plane. A plane of p bits of n codes takes h = ``ceil(n p / 8)``
bytes. Byte j holds the codes j, j + h, j + 2h, ..., from the lowest bits up. Kernels therefore shift whole vectors of codes,
and no single codes.
"""

from __future__ import annotations

from collections.abc import Iterator

CHUNK = 2048
"""Codes that are packed together. The number is small, so that the read parts of a chunk and the prefetched parts of the next
chunk fit into the nearest cache."""
SPAN = 8192
"""The length of the longest block."""
SUMMED_ELEMENTS = 1 << 17
"""Elements of a tensor whose sums are added in lanes of float32."""
TOTAL, ABSOLUTE, SQUARE, TOP, NEGATIVE = (1 << column for column in range(5))
"""Moments to compute, as bits of a number: sums of x, |x| and x squared, largest magnitude, count of sign bits."""
LANES = 64
"""Sums are added in this number of lanes, and the lanes then by halves. In a block, element i is in lane i modulo this number.
A stretch has four quarters of equal length, each with 16 lanes: element i of a quarter is in its lane i modulo 16. The
remaining elements, fewer than 64, come last, one a lane."""
BLOCK = 1 << 19
"""Passes that only read process blocks of this number of elements, the last block first. The first elements are then in the
cache for the next pass. Shorter blocks are slower: the hardware prefetches forward, within one block only."""
PIECE = 1 << 17
"""Elements that are unpacked at a time where they are then processed at once: their memory fits into the cache."""
RUN = 1 << 11
"""Elements whose terms are added by halves, in float64."""
STREAMED = 1 << 22
"""Codes of 8 bits bypass the caches when they are written, if their tensor has at least this number of elements."""
PAIR_DISTANCE = 32
"""One state of the random numbers serves two elements at this distance, in every 64 elements from the start of a tensor."""


def blocks_backwards(size: int) -> Iterator[tuple[int, int]]:
    """Yield the bounds of blocks of `BLOCK` elements, the last first."""
    for low in range((size - 1) // BLOCK * BLOCK if size else -1, -1, -BLOCK):
        yield low, min(low + BLOCK, size)


def planes(width: int) -> Iterator[int]:
    """Yield the widths of the planes for codes of ``width`` bits."""
    while width:
        plane = 8 if width >= 8 else 4 if width >= 4 else 2 if width >= 2 else 1
        yield plane
        width -= plane


def packed_size(codes: int, width: int) -> int:
    """Return the bytes of ``codes`` packed codes."""
    chunks, rest = divmod(codes, CHUNK)
    return chunks * CHUNK * width // 8 + sum(-(-rest * plane // 8) for plane in planes(width))


def code_width(codes: int) -> int:
    """Return the bits of a code with ``codes`` different values."""
    return max(codes - 1, 1).bit_length()

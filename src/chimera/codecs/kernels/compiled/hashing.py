"""Random numbers by counting: a hash of an index and a key.

A state serves two elements, `HALF` apart in a chunk (see `layout`): what is mixed is multiplied by `EARLY` for the one and by
`LATE` for the other. Both are uniform to the last bit. Their quotient is a multiplier that is good in two dimensions
(Steele and Vigna, 2022: Computationally Easy, Spectrally Good Multipliers), so together they are independent to 16 bits.
"""

from __future__ import annotations

from typing import Any

from chimera.codecs.kernels.layout import CHUNK, HALF
from chimera.core.jit import U, inlined, njit

STEP = U(0x7FEB352D)
"""The state of the next index is larger by this."""
EARLY, LATE = U(0x846CA68B), U(0x846CA68B * 0xADB4A92D & 0xFFFFFFFF)


@inlined
def state_at(index: Any, first: Any) -> Any:
    """Return the state at an index."""
    return U(U(U(index) * STEP) + first)


@inlined
def mixed(state: Any, second: Any) -> Any:
    """Return what is multiplied by `EARLY` or `LATE` to give 32 random bits, the upper ones the better."""
    return U(U(state ^ U(state >> U(15))) ^ second)


@njit
def random_bits(first: Any, second: Any, begin: Any, out: Any) -> None:
    """Write the random bits of a tensor that begins at ``begin``."""
    for low in range(0, out.size, CHUNK):
        for half in range(2):
            part = out[low + half * HALF : low + (half + 1) * HALF]
            state, factor = state_at(begin + low, first), LATE if half else EARLY
            for j in range(part.size):
                part[j] = U(mixed(state, second) * factor)
                state = U(state + STEP)

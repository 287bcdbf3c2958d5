"""Counter-based random numbers: a hash of an index and a key.

A state serves two elements, `PAIR_DISTANCE` from each other (see `layout`): the mixed state is multiplied by `EARLY` for the
first and by `LATE` for the second. Both are uniform to the last bit. Their quotient is a good multiplier in two dimensions
(Steele and Vigna, 2022: Computationally Easy, Spectrally Good Multipliers). Together they are therefore independent to 16 bits.
"""

from __future__ import annotations

from typing import Any

from chimera.codecs.kernels.layout import PAIR_DISTANCE
from chimera.core.jit import U, inlined, njit

STEP = U(0x7FEB352D)
"""The difference between the states of successive indices."""
EARLY, LATE = U(0x846CA68B), U(0x846CA68B * 0xADB4A92D & 0xFFFFFFFF)


@inlined
def state_at(index: Any, first: Any) -> Any:
    """Return the state at an index."""
    return U(U(U(index) * STEP) + first)


@inlined
def word(state: Any, second: Any, j: Any) -> Any:
    """Return 32 random bits of element j, if ``state`` belongs to the first element of its chunk; upper bits are better."""
    late = U(U(j) & U(PAIR_DISTANCE))
    own = U(state + U(U(U(j) - late) * STEP))
    return U(U(U(own ^ U(own >> U(15))) ^ second) * (LATE if late else EARLY))


@njit
def random_bits(first: Any, second: Any, begin: Any, out: Any) -> None:
    """Write the random bits of a tensor that starts at ``begin``."""
    state = state_at(begin, first)
    for j in range(out.size):
        out[j] = word(state, second, j)

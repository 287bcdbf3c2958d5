"""Random numbers by counting: a hash of an index and a key."""

from __future__ import annotations

from typing import Any

from chimera.codecs.kernels.compiled.base import U, njit

_C1, _C2 = U(0x7FEB352D), U(0x846CA68B)


@njit
def state_at(index: Any, first: Any) -> Any:
    """Return the state at an index; that of the next one is larger by `_C1`."""
    return U(U(U(index) * _C1) + first)


@njit
def random_word(state: Any, second: Any) -> Any:
    """Return 32 random bits, the upper ones the better: a hash of the state, moved by the second half of the key."""
    x = U(state ^ U(state >> U(15)))
    return U(U(x * _C2) + second)


@njit
def random_bits(first: Any, second: Any, begin: Any, out: Any) -> None:
    """Write the random bits of the indices from ``begin`` on."""
    for j in range(out.size):
        out[j] = random_word(state_at(begin + j, first), second)

"""Import this to have numba ready: its first call in a process takes half a second, in those forked from it none."""

from __future__ import annotations

from chimera.core.jit import njit


@njit
def _nothing() -> int:
    return 0


_nothing()

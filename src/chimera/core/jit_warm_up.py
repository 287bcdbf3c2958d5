"""Preparation of numba: its first call in a process takes half a second, and none in processes forked after this import."""

from __future__ import annotations

from chimera.core.jit import njit


@njit
def _noop() -> int:
    return 0


_noop()

"""Reuse of the memory of chunks."""

from __future__ import annotations

import ctypes
from functools import cache

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_CHUNKS, _KEPT = 4 << 20, 32 << 20


@cache
def keep_pages() -> None:
    """Keep the pages of freed chunks for reuse by this process, up to 32 MiB.

    By default, glibc returns the memory of each chunk to the kernel, and gets new pages for the next chunk. The kernel sets
    these to zero, which takes as long as all other work on a chunk. The memory of larger objects, such as whole bodies, is
    still returned.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, _CHUNKS)
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT)

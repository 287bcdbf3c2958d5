"""Memory of chunks that is used again."""

from __future__ import annotations

import ctypes
from functools import cache

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_CHUNKS, _KEPT = 4 << 20, 32 << 20


@cache
def keep_pages() -> None:
    """Let this process use the pages of freed chunks again, up to 32 MiB.

    By default glibc gives the memory of each chunk back and gets new pages for the next one, of which the kernel zeroes every
    one: this takes as long as all the other work on a chunk. Larger objects, such as whole bodies, are still given back.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, _CHUNKS)
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT)

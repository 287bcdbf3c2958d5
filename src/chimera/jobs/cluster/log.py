"""The log of a cluster: what its supervisor and its daemon write, below the time."""

from __future__ import annotations

import contextlib
import sys
import time


def log(line: str) -> None:
    """Write a line. A log that cannot be written, on a full disk, must end nobody."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")
        sys.stderr.flush()

"""Log of a cluster: lines of its supervisor and its daemon, with their time."""

from __future__ import annotations

import contextlib
import sys
import time


def log(line: str) -> None:
    """Write a line. Errors are ignored, so that a full disk does not end the process."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")
        sys.stderr.flush()

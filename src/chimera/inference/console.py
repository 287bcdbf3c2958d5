"""Warnings that a process of a cluster shows on the console of the supervisor, which reads the output of its processes."""

from __future__ import annotations

import contextlib
import sys

PREFIX = "chimera: warning: "
"""The prefix of such lines in the output of a process."""


def warn(text: str) -> None:
    """Show a warning of one line."""
    with contextlib.suppress(OSError):  # a full disk
        sys.stderr.write(f"{PREFIX}{text}\n")
        sys.stderr.flush()

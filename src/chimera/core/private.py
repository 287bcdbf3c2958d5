"""Folders and files that only their owner reads, whatever the umask: weights, checkpoints, logs, journals."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER, FILE = 0o700, 0o600
"""The modes of what the project writes on its own."""
UMASK = 0o077
"""The umask of the processes that the project starts for itself."""


def make_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing, each for its owner alone; one that is there keeps its mode.

    `Path.mkdir` with a mode and ``parents`` gives the mode to the last folder only: with an umask of 0, others could then
    move that folder away.

    Raises
    ------
    OSError : it cannot be made, or a file has its name.
    """
    missing = []
    while not path.is_dir():
        missing.append(path)
        if path == path.parent:
            break
        path = path.parent
    for folder in reversed(missing):
        folder.mkdir(FOLDER, exist_ok=True)


def opener(path: str, flags: int) -> int:
    """Open a file, as the ``opener`` of `open`; a file that is made by this is its owner's alone."""
    return os.open(path, flags | getattr(os, "O_CLOEXEC", 0), FILE)


def write(path: Path, data: bytes) -> None:
    """Write a whole file, its owner's alone where it is new."""
    with open(path, "wb", opener=opener) as file:
        file.write(data)

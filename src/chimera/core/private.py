"""Folders and files that only their owner can read, with any umask: weights, checkpoints, logs, journals."""

from __future__ import annotations

import errno
import os
from pathlib import Path

FOLDER, FILE = 0o700, 0o600
"""The modes of the files and folders that the project writes on its own."""
UMASK = 0o077
"""The umask of the processes that the project starts for itself."""


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents, each for its owner only. An existing folder keeps its mode.

    `Path.mkdir` with a mode and ``parents`` sets the mode of the last folder only. With an umask of 0, other users could then
    move that folder away.

    Raises
    ------
    NotADirectoryError : a file has its name, or that of a parent.
    OSError : it cannot be created.
    """
    missing = []
    while not path.is_dir():
        missing.append(path)
        if path == path.parent:
            break
        path = path.parent
    for folder in reversed(missing):
        try:
            folder.mkdir(FOLDER, exist_ok=True)
        except FileExistsError as error:  # "File exists" would not say what is wrong
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from error


def opener(path: str, flags: int) -> int:
    """Open a file, as the ``opener`` of `open`; a new file is readable by its owner only."""
    return os.open(path, flags | getattr(os, "O_CLOEXEC", 0), FILE)


def write(path: Path, data: bytes) -> None:
    """Write a whole file; a new file is readable by its owner only."""
    with open(path, "wb", opener=opener) as file:
        file.write(data)

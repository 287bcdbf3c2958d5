"""Files of a folder that another user may have written: no link in it may lead out of it, and sizes are bounded."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import IO

from chimera.core.errors import ConfigurationError, DataError

MAX_SETTINGS_BYTES = 16 << 20
"""Maximum size of a file of settings, such as ``experiment.toml``, in bytes."""
MAX_DOCUMENT_BYTES = 256 << 20
"""Maximum size of another document that is read as a whole, such as ``summary.json``, in bytes."""


def safe_path(folder: Path, name: str) -> Path:
    """Return the path of a file in a folder, for reading or writing. The folder itself may be a link.

    Raises
    ------
    ConfigurationError : a link leads out of the folder.
    """
    path = folder / name
    try:
        stays = path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # a cycle of links
        stays = False
    if not stays:
        raise ConfigurationError(f"{path} is a link out of its folder: put the file itself there, or remove the link")
    return path


def open_regular(path: Path) -> IO[bytes]:
    """Open a file for reading. Opening a named pipe in its place could wait forever.

    Raises
    ------
    DataError : it is no regular file.
    OSError : it does not exist, cannot be read, or is a folder.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise DataError(f"{path} is a pipe or a device, not a file")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: Path, max_bytes: int) -> bytes:
    """Return the content of a file. A sparse file may be larger than all memory, although an archive of it is small.

    Raises
    ------
    DataError : it is no regular file, or has more than ``max_bytes``.
    OSError : it does not exist, cannot be read, or is a folder.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise DataError(f"{path} has more than {max_bytes >> 20} MiB")
        return file.read(size)  # without a number it would read to the end of a file that grows meanwhile

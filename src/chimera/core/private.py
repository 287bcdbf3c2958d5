"""Folders and files that only their owner can read, with any umask: weights, checkpoints, logs, journals."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from chimera.core.errors import ConfigurationError

FOLDER, FILE = 0o700, 0o600
"""The modes of the files and folders that the project writes on its own."""
_UNMAPPED = 65534  # the owner that NFS with `all_squash` and user namespaces show for users that they do not tell apart
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


def check_is_own(path: Path) -> None:
    """Refuse an existing file or folder that another user owns, or that all users can write: that user may know or change it.

    Root may use the files of all users: in a container, root often works in a folder of the user who started it.

    Raises
    ------
    ConfigurationError : the content of the path is in the hands of other users.
    OSError : it cannot be read.
    """
    status, user = path.stat(), os.geteuid()
    if user and status.st_uid not in (user, 0, _UNMAPPED):
        raise ConfigurationError(
            f"{path} belongs to another user (number {status.st_uid}), who may know or change its content: use another folder, "
            "such as a new one in it"
        )
    if status.st_mode & stat.S_IWOTH:
        raise ConfigurationError(
            f"all users of this machine can write {path}: run 'chmod o-w', or choose another folder, such as a new one in it"
        )


def make_own_folder(path: Path) -> None:
    """Create a folder for secrets as `make_folder` does; refuse an existing one of another user, see `check_is_own`.

    Another user could have created the folder before, with a token or key that this user would then use.
    """
    make_folder(path)
    check_is_own(path)


def opener(path: str, flags: int) -> int:
    """Open a file, as the ``opener`` of `open`; a new file is readable by its owner only."""
    return os.open(path, flags | getattr(os, "O_CLOEXEC", 0), FILE)


def write(path: Path, data: bytes) -> None:
    """Write a whole file; a new file is readable by its owner only."""
    with open(path, "wb", opener=opener) as file:
        file.write(data)

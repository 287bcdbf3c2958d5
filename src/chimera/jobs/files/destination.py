"""A folder that takes files whose names come from a peer: nothing outside of it is written, whatever links are in it."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType

from chimera.core.errors import ConfigurationError, RunError
from chimera.core.private import FILE, FOLDER, make_folder

MARK = ".fetched"
"""The file by which a folder is known that may be written over."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Destination:
    """The folder, held open from `__enter__` on.

    A path is walked part by part, each opened below the last one without following links, so that a link which is there, or
    which another process puts there meanwhile, is an error and no way out. A file is written under a new name and takes its own
    by a rename: one that has other names elsewhere (hard links) keeps its content there.

    Parameters
    ----------
    folder : is made; one that is there is empty, or has the mark of an earlier use. Links above it are the user's own.
    most : how many files and folders may be made.
    """

    def __init__(self, folder: Path, most: int) -> None:
        self._folder, self._left, self._root = folder, most, -1

    def __enter__(self) -> Destination:
        with self._told(""), contextlib.ExitStack() as opened:
            make_folder(self._folder)
            root = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            opened.callback(os.close, root)
            names = os.listdir(root)  # noqa: PTH208 - of the folder that is open
            if names and MARK not in names:
                raise ConfigurationError(
                    f"{self._folder} holds files that were not fetched: choose a new or an empty folder"
                )
            if not names:
                os.close(os.open(MARK, _NEW, FILE, dir_fd=root))
            opened.pop_all()
            self._root = root
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._root)

    def make(self, path: str) -> None:
        """Make a folder, with those above it."""
        with self._told(path):
            os.close(self._parent([*path.split("/")]))

    def write(self, path: str, parts: Iterable[bytes]) -> None:
        """Write a file, or replace one, whole or not at all.

        Raises
        ------
        ConfigurationError : it cannot be written there: a link or a file stands where a folder should be, say.
        RunError : there are too many.
        """
        *above, name = path.split("/")
        with self._told(path):
            self._count()
            if path == MARK:
                raise RunError(f"the files from the cluster are refused: {MARK!r} is the mark of a fetched folder")
            parent = self._parent(above)
            draft = f".{secrets.token_hex(8)}.part"
            try:
                with os.fdopen(os.open(draft, _NEW, FILE, dir_fd=parent), "wb") as file:
                    for part in parts:
                        file.write(part)
                os.rename(draft, name, src_dir_fd=parent, dst_dir_fd=parent)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(draft, dir_fd=parent)
                os.close(parent)

    def _parent(self, parts: list[str]) -> int:
        """Return the descriptor of a folder below, which is made where it is missing."""
        at = os.dup(self._root)
        for part in parts:
            try:
                below = self._opened(part, at)
            finally:
                os.close(at)
            at = below
        return at

    def _opened(self, name: str, at: int) -> int:
        """Return the descriptor of the folder ``name`` in the folder of the descriptor ``at``."""
        try:
            return os.open(name, _FOLDER, dir_fd=at)
        except FileNotFoundError:
            self._count()
            os.mkdir(name, FOLDER, dir_fd=at)
            return os.open(name, _FOLDER, dir_fd=at)

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise RunError("the files from the cluster are refused: there are too many of them")

    @contextlib.contextmanager
    def _told(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ConfigurationError(f"{self._folder / path} cannot be written: {error.strerror or error}") from error

"""Folder for files whose names come from a peer. Nothing is written outside it, regardless of the links in it."""

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
"""Marker file of a folder whose files may be overwritten."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Destination:
    """A target folder, open from `__enter__` to `__exit__`.

    A path is opened part by part, relative to the descriptor of its parent and without following links. A link, also one that
    another process creates meanwhile, is therefore an error. A file is written under a temporary name and then renamed, so that
    hard links to a replaced file keep their content.

    Parameters
    ----------
    folder : the folder, created if it does not exist; it must be empty or have the marker of an earlier use. Links in the
        path of the folder itself are followed.
    max_entries : maximum number of files and folders.
    """

    def __init__(self, folder: Path, max_entries: int) -> None:
        self._folder, self._left, self._root = folder, max_entries, -1

    def __enter__(self) -> Destination:
        with self._errors_translated(""), contextlib.ExitStack() as opened:
            make_folder(self._folder)
            root = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            opened.callback(os.close, root)
            names = os.listdir(root)  # noqa: PTH208 - a descriptor
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

    def make_folder(self, path: str) -> None:
        """Create a folder with its parents."""
        with self._errors_translated(path):
            os.close(self._parent([*path.split("/")]))

    def write(self, path: str, parts: Iterable[bytes]) -> None:
        """Write or replace a file atomically.

        Raises
        ------
        ConfigurationError : it cannot be written, for example because a link or a file is in the place of a folder.
        RunError : there are too many files, or the path is that of the marker file.
        """
        *above, name = path.split("/")
        with self._errors_translated(path):
            self._count()
            if path == MARK:
                raise RunError(f"the files from the cluster are refused: {MARK!r} is the marker of a fetched folder")
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
        """Return the descriptor of a sub-folder, created if it does not exist."""
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
    def _errors_translated(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ConfigurationError(f"{self._folder / path} cannot be written: {error.strerror or error}") from error

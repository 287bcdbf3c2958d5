"""The nodes that run from a folder: `.chimera/nodes.json`, valid while their process holds the lock file next to it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from chimera.core.errors import ConfigurationError
from chimera.core.private import FILE, make_folder, write

FOLDER = Path(".chimera")
SERVES = "the master serves at"  # begins the line of a master that answers


class State:
    """The lock and state file of a folder's nodes, as a context manager. If the process dies, the kernel releases the lock.

    Raises
    ------
    ConfigurationError : nodes run from this folder already, or the folder cannot be written.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = (folder or Path.cwd()).absolute() / FOLDER
        self._file = self._folder / "nodes.json"

    def __enter__(self) -> Self:
        try:
            make_folder(self._folder)
            self._lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT, FILE)
        except OSError as error:
            raise ConfigurationError(f"nodes cannot write to the folder that they run from: {error}") from None
        if not self._locked():
            os.close(self._lock)
            holder = _content(self._file).get("pid")
            raise ConfigurationError(
                f"nodes run from {self._folder.parent} already"
                + (f", process {holder}" if holder else "")
                + "; 'chimera nodes down' stops them"
            )
        return self

    def _locked(self) -> bool:
        for _ in range(10):
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.02)  # `read_state` holds the lock briefly
            else:
                return True
        return False

    def write(self, content: dict[str, Any]) -> None:
        """Write the state file.

        Raises
        ------
        ConfigurationError : the file cannot be written.
        """
        new = self._file.with_suffix(".new")
        try:
            write(new, (json.dumps({"pid": os.getpid(), **content}, indent=2) + "\n").encode())
            new.replace(self._file)
        except OSError as error:
            with contextlib.suppress(OSError):
                new.unlink()
            raise ConfigurationError(f"nodes cannot write {self._file}: {error.strerror or error}") from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Delete the state file, and release the lock."""
        self._file.unlink(missing_ok=True)
        os.close(self._lock)


def read_state(folder: Path) -> dict[str, Any] | None:
    """Return the state of the nodes that run from ``folder``; None if there are none."""
    try:
        lock = os.open(folder / FOLDER / "lock", os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _content(folder / FOLDER / "nodes.json")
    finally:
        os.close(lock)
    return None  # the lock is free: no process runs nodes from this folder


def _content(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}

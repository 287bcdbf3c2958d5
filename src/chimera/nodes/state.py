"""Which nodes run from a folder: `.chimera/nodes.json`, true for as long as their process holds the lock beside it."""

from __future__ import annotations

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


class State:
    """A folder's claim to its nodes; one process holds it at a time, and the kernel takes it from one that dies.

    Raises
    ------
    ConfigurationError : nodes run from this folder already, or it cannot be written.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = (folder or Path.cwd()).absolute() / FOLDER
        self._file = self._folder / "nodes.json"

    def __enter__(self) -> Self:
        try:
            make_folder(self._folder)
            self._lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT, FILE)
        except OSError as error:
            raise ConfigurationError(f"nodes write logs into the folder they run from, and cannot: {error}") from None
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
                time.sleep(0.02)  # `read_state` holds it for a moment
            else:
                return True
        return False

    def write(self, content: dict[str, Any]) -> None:
        """Say what runs."""
        new = self._file.with_suffix(".new")
        write(new, (json.dumps({"pid": os.getpid(), **content}, indent=2) + "\n").encode())
        new.replace(self._file)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give the folder free."""
        self._file.unlink(missing_ok=True)
        os.close(self._lock)


def read_state(folder: Path) -> dict[str, Any] | None:
    """Return what runs from ``folder``, or None."""
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
    return None  # whoever wrote it, if anyone did, is dead


def _content(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}

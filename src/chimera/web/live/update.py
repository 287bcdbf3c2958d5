"""The changes in a run's folder since a page copied it, as one bounded JSON object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from chimera.core.errors import ConfigurationError, RunError
from chimera.web.live.copied import CopiedRun
from chimera.web.live.description import SMALL, read_small, version
from chimera.web.live.pieces import FILES, PIECE_BYTES, read_piece

MAX_UPDATE_BYTES = 32 << 20
"""Maximum size of an update as JSON: three pieces and three small files, whose characters may need escapes."""
MAX_COPY_BYTES = 1 << 30
"""Maximum size of a copy of a growing file, in bytes; the rest is not followed."""
EVERY_S = 1.0
"""Seconds between two updates of a copy."""
_MAX_UPDATES = 32  # in one call, so that a page shows the start of a long run soon


def update_of(folder: Path, at: Mapping[str, int], known: str) -> dict[str, Any]:
    """Return the next lines of the growing files, and the small files if their version changed.

    Parameters
    ----------
    at : offset in bytes in each growing file; default 0.
    known : version of the small files that the copy has.
    """
    pieces = {name: read_piece(folder, name, at=at.get(name, 0)) for name in FILES}
    found = version(folder)
    return {
        "rows": {
            name: {
                "lines": piece.lines.decode("utf-8", "replace"), "at": piece.at, "size": piece.size,
                "restarted": piece.restarted,
            }
            for name, piece in pieces.items()
        },
        "version": found,
        "small": {} if found == known else {name: text for name in SMALL if (text := _text(folder, name)) is not None},
    }  # fmt: skip


def _text(folder: Path, name: str) -> str | None:
    try:
        content = read_small(folder, name)
    except (ConfigurationError, OSError):
        return None
    return None if content is None else content.decode("utf-8", "replace")


class UpdatedCopy(CopiedRun):
    """A copy of a run from its updates.

    Parameters
    ----------
    request : returns an update for offsets and a version, see `update_of`.
    folder : folder for the copy; it is created with the first file.
    """

    def __init__(self, request: Callable[[Mapping[str, int], str], Mapping[str, Any]], folder: Path) -> None:
        super().__init__(folder, EVERY_S)
        self._request = request
        self._at = dict.fromkeys(FILES, 0)
        self._copied = dict.fromkeys(FILES, 0)
        self._version = ""

    def download(self) -> None:
        """Request updates until there is no new data, or for some MiB.

        Raises
        ------
        RunError : an update is malformed; other errors are those of ``request``.
        """
        for _ in range(_MAX_UPDATES):
            before = dict(self._at)
            update = self._request(self._at, self._version)
            try:
                self._write(update)
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                raise RunError("the answer is no update of a run") from error
            if self._at == before:
                return

    def _write(self, update: Mapping[str, Any]) -> None:
        for name, text in update["small"].items():
            if name in SMALL:
                self._file(name).write_bytes(text.encode())
        self._version = str(update["version"])
        for name in FILES:
            rows = update["rows"][name]
            content, at = rows["lines"].encode(), int(rows["at"])
            if len(content) > 3 * PIECE_BYTES:  # a replacement character has three bytes
                raise RunError("an update has too many lines")
            if rows["restarted"]:
                self._copied[name] = 0
            if content and self._copied[name] + len(content) > MAX_COPY_BYTES:
                continue
            if content or rows["restarted"]:
                with self._file(f"{name}.jsonl").open("ab") as file:
                    file.truncate(self._copied[name])
                    file.write(content)
            self._copied[name] += len(content)
            self._at[name] = at

    def _file(self, name: str) -> Path:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        return self._folder / name

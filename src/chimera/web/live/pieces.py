"""Pieces of the growing files of a run: whole lines, in bounded size, from an offset or from near the end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from chimera.core.errors import ConfigurationError
from chimera.core.safe_path import open_regular, safe_path

FILES = ("metrics", "events", "trace")
"""The growing files, without their suffix ``.jsonl``."""
PIECE_BYTES = 1 << 18
"""Maximum size of a piece, in bytes."""


@dataclass(frozen=True)
class Piece:
    """Whole lines of a file.

    Attributes
    ----------
    lines : the lines, each with its newline.
    at : offset of the next piece in bytes.
    size : size of the file in bytes.
    restarted : whether the file is shorter than the requested offset: the run was resumed, and all earlier lines of the
        reader are invalid.
    """

    lines: bytes
    at: int
    size: int
    restarted: bool = False


def read_piece(folder: Path, name: str, *, at: int = 0, last: int | None = None) -> Piece:
    """Return the next whole lines of a growing file. A line longer than a piece is skipped.

    Parameters
    ----------
    name : one of `FILES`.
    at : offset of a line, in bytes, from an earlier piece.
    last : begin this number of bytes before the end, at the next line; ``at`` is ignored.

    Raises
    ------
    ConfigurationError : there is no such growing file, or it is a link out of the folder or no file.
    """
    if name not in FILES:
        raise ConfigurationError(f"{name!r} is no growing file of a run: use one of {', '.join(FILES)}")
    path = safe_path(folder, f"{name}.jsonl")
    try:
        with open_regular(path) as file:
            size = file.seek(0, 2)
            restarted = last is None and at > size
            begin = 0 if restarted else at if last is None else max(size - last, 0)
            file.seek(begin)
            part = file.read(PIECE_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return Piece(b"", at, at)  # not begun yet, or a folder that existed during the run only
    if last is not None and begin:
        cut = part.find(b"\n") + 1
        begin, part = begin + cut, part[cut:]
    end = part.rfind(b"\n") + 1
    if not end and len(part) == PIECE_BYTES:
        return Piece(b"", begin + len(part), size, restarted)
    return Piece(part[:end], begin + end, size, restarted)

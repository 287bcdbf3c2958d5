"""What a run leaves in its folder while it goes: metrics, events and the trace, a JSON object a line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import msgspec

from chimera.core.errors import RunError
from chimera.core.private import opener
from chimera.core.trace import TraceRow
from chimera.training.callback import Event

_FILES = ("metrics.jsonl", "events.jsonl", "trace.jsonl")
_encoder = msgspec.json.Encoder()


class History:
    """The three growing files of a run.

    Parameters
    ----------
    folder : where they are; it exists.
    sizes : the length of each file to go on from, in bytes; what a cut-off run wrote after its checkpoint is dropped.
    """

    def __init__(self, folder: Path, sizes: Mapping[str, int] | None = None) -> None:
        self.metrics: list[dict[str, Any]] = []
        self.events: list[Event] = []
        self._files: dict[str, IO[bytes]] = {}
        for name in _FILES:
            path = folder / name
            keep = (sizes or {}).get(name, 0)
            if path.exists():
                os.truncate(path, min(keep, path.stat().st_size))
            self._files[name] = open(path, "ab", opener=opener)  # noqa: SIM115 - closed by `close`
        if sizes:
            self.metrics = [msgspec.json.decode(line) for line in (folder / _FILES[0]).read_bytes().splitlines()]
            decoder = msgspec.json.Decoder(Event)
            self.events = [decoder.decode(line) for line in (folder / _FILES[1]).read_bytes().splitlines()]

    def add_metrics(self, row: dict[str, Any]) -> None:
        """Add a row of cumulative counters, with the losses and metrics that are known."""
        self.metrics.append(row)
        self._write("metrics.jsonl", _encoder.encode(row) + b"\n")

    def add_event(self, event: Event) -> None:
        """Add something that happened besides rounds."""
        self.events.append(event)
        self._write("events.jsonl", _encoder.encode(event) + b"\n")

    def add_trace(self, rows: Iterable[TraceRow]) -> None:
        """Add the rows of calls."""
        self._write("trace.jsonl", _encoder.encode_lines(list(rows)))

    def sizes(self) -> dict[str, int]:
        """Return how long each file is, in bytes."""
        return {name: file.tell() for name, file in self._files.items()}

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()

    def _write(self, name: str, data: bytes) -> None:
        try:
            self._files[name].write(data)
            self._files[name].flush()
        except OSError as error:
            raise RunError(
                f"{self._files[name].name} cannot be written: {error.strerror}; free some space and resume"
            ) from error


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file whole or not at all.

    Raises
    ------
    RunError : it cannot be written; what was there before is untouched.
    """
    with atomically(path) as file:
        file.write(data)


@contextmanager
def atomically(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that bears its name only when the block has ended well.

    Raises
    ------
    RunError : it cannot be written; what was there before is untouched.
    """
    unfinished = path.with_name(f"{path.name}.part")
    try:
        with open(unfinished, "wb", opener=opener) as file:
            yield file
        unfinished.replace(path)
    except BaseException as error:
        unfinished.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise RunError(f"{path} cannot be written: {error.strerror or error}") from error
        raise

"""The history of a run: metrics, events and the trace, each a file of JSON lines that grows during the run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec

from chimera.core.errors import ConfigurationError, RunError
from chimera.core.private import opener
from chimera.core.safe_path import safe_path
from chimera.core.trace import TraceRow
from chimera.training.progress.callback import Event

T = TypeVar("T")

FILES = ("metrics.jsonl", "events.jsonl", "trace.jsonl")
_encoder = msgspec.json.Encoder()


class History:
    """The files of metrics, events and trace of a run.

    Parameters
    ----------
    folder : the run's folder; must exist.
    sizes : for a run that resumes, the length of each file at the checkpoint, in bytes. Lines after that are removed.

    Attributes
    ----------
    missing : bytes that each file lacks of its length at the checkpoint. An incomplete last line of such a file is removed.

    Raises
    ------
    ConfigurationError : a file is a link out of the folder, or is damaged.
    """

    def __init__(self, folder: Path, sizes: Mapping[str, int] | None = None) -> None:
        self.metrics: list[dict[str, Any]] = []
        self.events: list[Event] = []
        self.missing: dict[str, int] = {}
        self._files: dict[str, IO[bytes]] = {}
        self._failed = False  # whether a row could not be written
        paths = {name: safe_path(folder, name) for name in FILES}
        for name, path in paths.items():
            wanted = (sizes or {}).get(name, 0)
            if (kept := _cut(path, wanted)) < wanted:
                self.missing[name] = wanted - kept
        if sizes:
            self.metrics = _rows(paths["metrics.jsonl"], dict[str, Any])
            self.events = _rows(paths["events.jsonl"], Event)
        for name, path in paths.items():
            self._files[name] = open(path, "ab", opener=opener)  # noqa: SIM115 - closed by `close`

    def add_metrics(self, row: dict[str, Any]) -> None:
        """Add a row of cumulative counters, losses and metrics."""
        self.metrics.append(row)
        self._write("metrics.jsonl", _encoder.encode(row) + b"\n")

    def add_event(self, event: Event) -> None:
        """Add an event."""
        self.events.append(event)
        self._write("events.jsonl", _encoder.encode(event) + b"\n")

    def add_trace(self, rows: Iterable[TraceRow]) -> None:
        """Add trace rows of calls."""
        self._write("trace.jsonl", _encoder.encode_lines(list(rows)))

    def sizes(self) -> dict[str, int]:
        """Return the length of each file in bytes."""
        return {name: file.tell() for name, file in self._files.items()}

    def synchronize(self) -> None:
        """Wait until all rows so far are on the disk; another thread may add rows meanwhile."""
        for file in self._files.values():
            os.fsync(file.fileno())

    def close(self) -> None:
        """Close the files. If a row could not be written, its rest is dropped: the error was raised then."""
        try:
            with ExitStack() as files:
                for file in self._files.values():
                    files.callback(file.close)
        except OSError:
            if not self._failed:
                raise

    def _write(self, name: str, data: bytes) -> None:
        try:
            self._files[name].write(data)
            self._files[name].flush()
        except OSError as error:
            self._failed = True
            raise RunError(
                f"{self._files[name].name} cannot be written: {error.strerror}; free some space and resume"
            ) from error


def _cut(path: Path, size: int) -> int:
    """Shorten a file to whole lines of at most ``size`` bytes; return its length."""
    if not path.exists():
        return 0
    with path.open("rb") as file:
        file.seek(max(size - 1, 0))
        other = path.stat().st_size != size  # its last rows were lost, or it has other rows since a resume without them
        if size and other and file.read(1) != b"\n":
            file.seek(0)
            wanted, size = size, 0
            for line in file:
                if not line.endswith(b"\n") or size + len(line) > wanted:
                    break
                size += len(line)
    os.truncate(path, size)
    return size


def _rows(path: Path, kind: type[T]) -> list[T]:
    try:
        return msgspec.json.Decoder(kind).decode_lines(path.read_bytes())
    except FileNotFoundError:
        return []
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigurationError(
            f"{path} is damaged, so the run cannot resume: {error}; remove the damaged lines, and resume again"
        ) from error


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file completely or not at all.

    Raises
    ------
    RunError : the file cannot be written. An existing file is unchanged.
    """
    with atomically(path) as file:
        file.write(data)


@contextmanager
def atomically(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing that gets its name when the block ends without an exception.

    Raises
    ------
    RunError : the file cannot be written. An existing file is unchanged.
    """
    unfinished = path.with_name(f"{path.name}.part")
    try:
        unfinished.unlink(missing_ok=True)  # a link would be followed
        with open(unfinished, "wb", opener=opener) as file:
            yield file
        unfinished.replace(path)
    except BaseException as error:
        unfinished.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise RunError(f"{path} cannot be written: {error.strerror or error}") from error
        raise

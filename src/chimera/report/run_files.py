"""The files of a run's folder, which are readable in any state.

A run can stop at any point. An incomplete last line is skipped, and a run without summary is unfinished.
`RunFiles.notes` lists files and lines that could not be read.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from chimera.core.counted import counted
from chimera.core.errors import ConfigurationError
from chimera.core.private import write
from chimera.core.safe_path import MAX_DOCUMENT_BYTES, open_regular, read_regular, safe_path
from chimera.core.toml import read_toml
from chimera.core.trace import TraceRow
from chimera.report.timeline import MAX_NUMBER, Lane, lanes_of
from chimera.report.word_vectors import Words, read_words

T = TypeVar("T")

COUNTERS = (
    *("round", "epoch", "samples", "seconds", "bytes_up", "bytes_down", "lost_rounds"),
    *("elements_up", "packed_up", "elements_down", "packed_down"),
    *("tokens", "flops"),
)
_CHUNK_BYTES = 1 << 22
_MAX_LINE_BYTES = 1 << 26


@dataclass(frozen=True, eq=False)
class RunFiles:
    """The content of a run's folder.

    Attributes
    ----------
    folder : the run's folder.
    experiment : the tables of ``experiment.toml``.
    metrics : the rows of ``metrics.jsonl``, oldest first.
    lanes : the timeline, from ``trace.jsonl``.
    events : the rows of ``events.jsonl``.
    summary : ``summary.json``; empty if the run did not finish.
    environment : ``environment.json``.
    data : ``data.json``, see `chimera.core.worker_counts.WorkerCounts`; the schema that nodes agreed on, if they have
        the rows; empty if the run does not show what workers hold.
    words : the vectors of frequent words, if the run has any.
    notes : sentences about files or lines that could not be read.
    """

    folder: Path
    experiment: dict[str, Any]
    metrics: list[dict[str, Any]]
    lanes: list[Lane]
    events: list[dict[str, Any]]
    summary: dict[str, Any]
    environment: dict[str, Any]
    data: dict[str, Any]
    words: Words | None = None
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.resolve().name

    @property
    def finished(self) -> bool:
        """Whether the run finished."""
        return bool(self.summary)

    @property
    def diverged(self) -> bool:
        """Whether the last recorded loss is NaN or infinite."""
        losses = [row[key] for row in self.metrics[-1:] for key in ("train_loss", "loss") if key in row]
        return not all(math.isfinite(finite(loss)) for loss in losses)

    def plugin(self, table: str) -> str:
        """Return the plug-in name in a table of the experiment, or an empty string."""
        named = self.summary.get(table) or self.experiment.get(table)
        return str((named.get("name") or "") if isinstance(named, dict) else (named or ""))

    @property
    def workers(self) -> int:
        """The number of workers at the start; 0 if unknown."""
        count = self.summary.get("workers")
        return count if isinstance(count, int) else sum(lane.is_worker for lane in self.lanes)

    @property
    def shows_samples(self) -> bool:
        """Whether samples per worker are more informative than rounds: workers take local steps, or train on text."""
        strategy = self.experiment.get("strategy")
        is_local = isinstance(strategy, dict) and "local_steps" in strategy
        return is_local or (self.folder / "vocabulary.txt").is_file()

    @property
    def target(self) -> dict[str, float]:
        """The target values of metrics."""
        train = self.experiment.get("train")
        wanted = train.get("target") if isinstance(train, dict) else None
        found = {key: finite(value) for key, value in wanted.items()} if isinstance(wanted, dict) else {}
        return {key: value for key, value in found.items() if math.isfinite(value)}

    @property
    def is_virtual(self) -> bool:
        """Whether times are virtual: the run used the simulated engine."""
        return self.plugin("engine") == "simulated"

    def figures(self) -> dict[str, Any]:
        """Return the results under the names of ``summary.json``; of an unfinished run, the results so far."""
        if self.finished:
            return self.summary
        lost = {str(event.get("actor", "")) for event in self.events if "lost" in str(event.get("event", ""))}
        if not self.metrics:
            return {"lost_workers": len(lost)}
        last = self.metrics[-1]
        seconds = last.get("seconds") or 0.0
        counted: dict[str, Any] = {
            key: last[key]
            for key in ("samples", "seconds", "tokens", "flops", "bytes_up", "bytes_down", "lost_rounds")
            if key in last
        }
        evaluated: dict[str, Any] = {}
        for row in self.metrics:
            evaluated.update({key: value for key, value in row.items() if is_metric(key, value)})
        rates = {f"{key}_per_second": last[key] / seconds for key in ("samples", "tokens") if seconds and key in last}
        reached = {"rounds": last.get("round", 0), "epochs": last.get("epoch", 0.0)}
        return {"metrics": evaluated, **counted, **rates, **reached, "lost_workers": len(lost)}


CLIENT = "client_"
"""Prefix of the names of metrics on the workers' own data."""
WORKER_METRICS = frozenset({"consensus_distance", "epsilon"})
"""Metrics of the workers' models or of their privacy, not of the test set."""


def is_metric(key: str, value: Any) -> bool:
    """Return whether a column of ``metrics.jsonl`` is a metric: on the test set, except for `WORKER_METRICS`."""
    return key not in (*COUNTERS, "train_loss") and isinstance(value, int | float) and not isinstance(value, bool)


def finite(value: Any) -> float:
    """Return a value as a float; NaN if it is not a number (NaN is null in JSON) or too large for arithmetic."""
    return float(value) if isinstance(value, int | float) and abs(value) < MAX_NUMBER else math.nan


def run_folder(run_dir: str | os.PathLike[str]) -> Path:
    """Return the folder of a run.

    Raises
    ------
    ConfigurationError : there is no such folder, or it contains no file of a run.
    """
    folder = Path(run_dir)
    if not folder.is_dir():
        raise ConfigurationError(
            f"there is no run folder {str(folder)!r}; give the folder of a run, such as runs/<name>"
        )
    if not any((folder / name).is_file() for name in ("experiment.toml", "metrics.jsonl", "summary.json")):
        raise ConfigurationError(
            f"{str(folder)!r} is not a run folder: it has neither experiment.toml nor metrics.jsonl nor summary.json"
        )
    return folder


def read_run(run_dir: str | os.PathLike[str]) -> RunFiles:
    """Read the folder of a run.

    Raises
    ------
    ConfigurationError : there is no such folder, or it contains no file of a run.
    """
    folder = run_folder(run_dir)
    notes: list[str] = []
    events = list(_rows(folder / "events.jsonl", dict[str, Any], notes))
    return RunFiles(
        folder=folder,
        experiment=_table(folder / "experiment.toml", notes),
        metrics=list(_rows(folder / "metrics.jsonl", dict[str, Any], notes)),
        lanes=lanes_of(_rows(folder / "trace.jsonl", TraceRow, notes), events),
        events=events,
        summary=_table(folder / "summary.json", notes),
        environment=_table(folder / "environment.json", notes),
        data=_table(folder / "data.json", notes),
        words=read_words(folder, notes),
        notes=tuple(notes),
    )


def read_metrics(run_dir: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the readable rows of ``metrics.jsonl``, oldest first; none if there is no such file."""
    return list(_rows(Path(run_dir) / "metrics.jsonl", dict[str, Any], []))


def read_trace(run_dir: str | os.PathLike[str], notes: list[str]) -> Iterator[TraceRow]:
    """Yield the readable rows of ``trace.jsonl`` in bounded memory; add a note if some could not be read."""
    return _rows(Path(run_dir) / "trace.jsonl", TraceRow, notes)


def _table(path: Path, notes: list[str]) -> dict[str, Any]:
    if not _is_own(path, notes):
        return {}
    try:
        text = read_regular(path, MAX_DOCUMENT_BYTES).decode("utf-8", "replace")
        table = read_toml(text) if path.suffix == ".toml" else json.loads(text, parse_int=_number)
    except (ValueError, RecursionError):
        notes.append(f"{path.name} could not be read.")
        return {}
    return table if isinstance(table, dict) else {"value": table}


def _rows(path: Path, row_type: type[T], notes: list[str]) -> Iterator[T]:
    """Yield the rows of a JSON-lines file, in bounded memory, and add a note if lines were invalid.

    A line that is too long is the last one: the rest of a sparse file could take hours.
    """
    if not _is_own(path, notes):
        return
    decoder = msgspec.json.Decoder(row_type)
    skipped, rest = 0, b""
    with open_regular(path) as file:
        while len(rest) <= _MAX_LINE_BYTES and (chunk := file.read(_CHUNK_BYTES)):
            lines, newline, rest = (rest + chunk).rpartition(b"\n")
            try:
                yield from decoder.decode_lines(lines + newline)
            except (msgspec.MsgspecError, RecursionError):
                rows = [row for line in lines.splitlines() if (row := _row(line, row_type)) is not None]
                skipped += sum(1 for line in lines.splitlines() if line.strip()) - len(rows)
                yield from rows
    if len(rest) > _MAX_LINE_BYTES:
        notes.append(f"{path.name} has a line of more than {_MAX_LINE_BYTES >> 20} MiB; the rest could not be read.")
    elif rest.strip():
        row = _row(rest, row_type)
        if row is None:
            skipped += 1
        else:
            yield row
    if skipped:
        notes.append(f"{path.name}: {counted(skipped, 'line')} could not be read.")


def _row(line: bytes, row_type: type[T]) -> T | None:
    """Return one line as a row, or None if it is invalid. The literal NaN is accepted, although strict JSON lacks it."""
    try:
        return msgspec.convert(json.loads(line, parse_int=_number), row_type) if line.strip() else None
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return None


def _number(digits: str) -> int | float:
    """Return an int; a huge number as a float, so that arithmetic with it does not overflow."""
    return int(digits) if len(digits) < 19 else float(digits)


def _is_own(path: Path, notes: list[str]) -> bool:
    """Return whether the file exists and is not a link out of its folder."""
    try:
        return safe_path(path.parent, path.name).is_file()
    except ConfigurationError:
        notes.append(f"{path.name} is a link out of the folder and was not read.")
        return False


def replace_file(path: Path, content: bytes) -> None:
    """Write a file atomically: readers see the old content or the new one, never a part.

    Raises
    ------
    ConfigurationError : it cannot be written there.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        try:
            partial.unlink(missing_ok=True)  # writing would follow a link
            write(partial, content)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigurationError(f"cannot write {str(path)!r}: {error.strerror or error}") from error

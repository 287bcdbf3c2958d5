"""Progress and events of a run, read from the files in its folder."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from chimera.jobs.driver.progress_file import Tail
from chimera.report.run_files import is_metric
from chimera.training.progress.budget import Budget, Counters
from chimera.training.progress.callback import Event, Progress

_TAIL = 1 << 16
_LIMITS = ("epochs", "rounds", "max_seconds", "max_bytes")


class RunLimits(Struct, frozen=True):
    """The data that is needed to compute progress from rows of metrics.

    Attributes
    ----------
    limits : limits of the run by name; see `Budget`.
    virtual_time : whether the seconds of the run are virtual.
    """

    limits: Mapping[str, float] = {}
    virtual_time: bool = False

    @classmethod
    def of(cls, tables: Mapping[str, Any]) -> RunLimits:
        """Return the limits of an experiment."""
        limits = {name: value for name in _LIMITS if (value := tables["train"].get(name)) is not None}
        return cls(limits, tables.get("engine", {}).get("name") == "simulated")

    def fraction(self, row: Mapping[str, Any]) -> float | None:
        """Return the used fraction of the budget at a row of metrics; None without a limit."""
        if not self.limits:
            return None
        used = Counters(
            rounds=row["round"], samples=row["samples"], seconds=row["seconds"] or 0.0,
            bytes_up=row["bytes_up"], bytes_down=row["bytes_down"],
        )  # fmt: skip
        train_size = row["samples"] / row["epoch"] if row["epoch"] else 1
        return Budget(**self.limits).fraction(used, train_size)  # type: ignore[arg-type]


class RunUpdates:
    """Reader of the new rows in the folder of a run.

    Parameters
    ----------
    run : folder of the run; it may not exist yet.
    from_start : whether to begin with the first row, and not with the next new one.
    """

    def __init__(self, run: Path, limits: RunLimits, *, from_start: bool = True) -> None:
        self._run, self._limits = run, limits
        self._metrics, self._events = Tail(run / "metrics.jsonl"), Tail(run / "events.jsonl")
        if not from_start:
            self._metrics.to_end()
            self._events.to_end()
        self._progress = Progress(0, 0.0, 0, 0.0, 0, 0, None, {}, 0.0, {}, virtual_time=limits.virtual_time)
        self._begins = from_start

    def attempt_started(self) -> None:
        """Report the next row as that of a new attempt."""
        self._begins = True

    def new(self) -> list[Progress | Event]:
        """Return the progress and the events since the last call, oldest first."""
        return [*self._new_progress(), *self._new_events()]

    def begins(self) -> Progress | None:
        """Return the progress at the start of an attempt, once its first row is written; None otherwise."""
        if not self._begins or not _has_new(self._metrics):
            return None
        self._begins = False
        return self._progress

    def summary(self) -> dict[str, Any] | None:
        """Return the summary of the run; None if it has not finished."""
        try:
            summary = msgspec.json.decode((self._run / "summary.json").read_bytes())
        except (OSError, msgspec.DecodeError):
            return None
        return summary if isinstance(summary, dict) else None

    def _new_progress(self) -> list[Progress]:
        found = []
        for line in _new_lines(self._metrics):
            if (row := _row(line)) is not None and (progress := self._progress_at(row)) is not None:
                self._progress = progress
                found.append(progress)
        return found

    def _new_events(self) -> list[Event]:
        found = []
        for line in _new_lines(self._events):
            try:
                found.append(msgspec.json.decode(line, type=Event))
            except msgspec.DecodeError:
                continue
        return found

    def _progress_at(self, row: Mapping[str, Any]) -> Progress | None:
        metrics = {key: value for key, value in row.items() if is_metric(key, value)}
        try:
            return msgspec.structs.replace(
                self._progress,
                rounds=row["round"],
                epochs=row["epoch"],
                loss=row.get("train_loss"),
                metrics=metrics or self._progress.metrics,
                fraction=self._limits.fraction(row),
                **{key: row[key] for key in ("samples", "seconds", "bytes_up", "bytes_down")},
                **{key: row[key] for key in ("tokens", "flops") if key in row},
            )
        except (KeyError, TypeError):  # not a row of this version
            return None


def last_fraction(run: Path, limits: RunLimits) -> float | None:
    """Return the used fraction of a run's budget at its last row of metrics; None if there is none."""
    try:
        with (run / "metrics.jsonl").open("rb") as opened:
            opened.seek(max(0, os.fstat(opened.fileno()).st_size - _TAIL))
            lines = opened.read().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        try:
            if (row := _row(line)) is not None:
                return limits.fraction(row)
        except (KeyError, TypeError):
            return None
    return None


def _has_new(tail: Tail) -> bool:
    _follow_truncation(tail)
    return tail.size() > tail.at


def _new_lines(tail: Tail) -> list[bytes]:
    _follow_truncation(tail)
    return list(tail.lines())


def _follow_truncation(tail: Tail) -> None:
    """Continue at the end of a file that became shorter: a resumed run removes the rows after its checkpoint."""
    if tail.size() < tail.at:
        tail.to_end()


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = msgspec.json.decode(line)
    except msgspec.DecodeError:  # an incomplete line
        return None
    return row if isinstance(row, dict) else None


def updates_and_lines(updates: RunUpdates, log: Tail, *, ended: bool) -> Iterator[dict[str, Any]]:
    """Yield the new updates of a job, and lines of its log; if it has ended, all lines, and also an incomplete last one."""
    more = True
    while more:  # one read has at most 1 MiB of the log, and an incomplete last line is a read of its own
        lines = [{"log": line.decode("utf-8", "replace")} for line in log.lines(last=ended)]
        if (begin := updates.begins()) is not None:
            yield {"told": {"start": msgspec.to_builtins(begin)}}
        for each in updates.new():
            yield {"told": {"event" if isinstance(each, Event) else "progress": msgspec.to_builtins(each)}}
        yield from lines
        more = ended and bool(lines)

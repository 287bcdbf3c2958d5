"""The measurements that a calibration reads from the folder of a run: times of calls and rounds, and sizes."""

from __future__ import annotations

import itertools
import os
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError
from chimera.core.trace import TraceRow
from chimera.report.run_files import RunFiles, finite, read_run, read_trace
from chimera.report.timeline import MAX_NUMBER, on_one_clock

Floats: TypeAlias = NDArray[np.float64]

MAX_ROWS = 1_000_000
_MAX_KINDS = 5000
"""Number of kinds of calls, by actor and name, that are read; rows of further kinds are left out."""
_MAX_COUNT = 1 << 31
WARM_UP = 3
"""Number of first calls of each kind of an actor that are left out: they load libraries, fill caches and compile."""
IN_MEMORY = ("local",)
"""Engines whose messages stay in the memory of one machine: their copies are part of calls, so bytes take no further time."""
_PARTS_OF_TRAINING = frozenset({"gradient", "update", "serve", "serve_each", "train_with_servers", "train"})
"""Calls of the training, also where one call has many rounds."""


@dataclass(frozen=True, eq=False)
class Calls:
    """Calls of one kind on one actor, in the order of their starts; all arrays have the shape (calls,).

    Attributes
    ----------
    start_s, end_s : start and end as in the trace.
    work_s : the time in the call without waiting and transfers.
    transfer_s : the time of transfers, in which the actor was idle.
    samples, bytes_in, bytes_out : values of the trace.
    after_s : the time in the call after its result had been received, which `work_s` does not contain.
    """

    start_s: Floats
    end_s: Floats
    work_s: Floats
    transfer_s: Floats
    samples: Floats
    bytes_in: Floats
    bytes_out: Floats
    after_s: Floats

    def __len__(self) -> int:
        return len(self.end_s)

    def after_warm_up(self) -> Calls:
        """Return the calls without the first calls, which warm up the actor."""
        skipped = min(WARM_UP, len(self) // 4)
        return Calls(*(column[skipped:] for column in vars(self).values()))


@dataclass(frozen=True, eq=False)
class MeasuredRun:
    """The measurements of one run.

    Attributes
    ----------
    files : the files of its folder.
    calls : calls by actor and name.
    notes : sentences about what could not be read.
    """

    files: RunFiles
    calls: Mapping[tuple[str, str], Calls]
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.files.name

    @property
    def engine(self) -> str:
        """The name of its engine."""
        return self.files.plugin("engine")

    @property
    def workers(self) -> list[str]:
        """The names of its workers that processed samples."""
        return sorted({actor for (actor, _), calls in self.calls.items() if _is_worker(actor) and calls.samples.any()})

    @property
    def batch_size(self) -> int:
        """Samples of a batch; 0 if the experiment does not state them."""
        train = self.files.experiment.get("train")
        size = train.get("batch_size", 64) if isinstance(train, Mapping) else 0
        return size if type(size) is int and 0 < size < _MAX_COUNT else 0

    @property
    def processors(self) -> int:
        """Processors of the driver's host; 0 if not known."""
        count = self.files.environment.get("processors")
        return count if type(count) is int and 0 < count < _MAX_COUNT else 0

    def training_calls(self, worker: str) -> Calls:
        """Return the calls in which a worker processed samples; of several names, those of the most frequent one.

        On one machine, the time of synchronous calls ends when the server has their results, see `until_received`.
        """
        found = [calls for (actor, _), calls in self.calls.items() if actor == worker and calls.samples.any()]
        longest = max(found, key=len)
        has_samples = longest.samples > 0
        calls = Calls(*(column[has_samples] for column in vars(longest).values()))
        updates = self.updates() if self.engine in IN_MEMORY else None
        if updates is None or abs(len(calls) - len(updates)) > 1 or ("server 1", "update") in self.calls:
            return calls
        return until_received(calls, updates)

    def updates(self) -> Calls | None:
        """Return the updates of the first server; None if the run has no servers."""
        return self.calls.get(("server 0", "update"))

    @property
    def has_servers(self) -> bool:
        """Whether the run has parameter servers."""
        return any(_is_server(actor) for actor, _ in self.calls)

    def elements_per_update(self) -> float:
        """Return the elements that one call of `update` of a server reads: the elements of all gradients it combines.

        An asynchronous server in a group also copies its weights for each worker: as many elements again.
        """
        updates = sum(len(calls) for (_, name), calls in self.calls.items() if name == "update")
        last = self.files.metrics[-1] if self.files.metrics else {}
        elements = finite(last.get("elements_up")) / updates if updates and last.get("elements_up") else 0.0
        copies = any(name == "serve_each" for _, name in self.calls)
        return 2 * elements if copies else elements

    def elements_per_message(self) -> int:
        """Return the elements of the vector that a training call sends; 0 if it is not known."""
        calls = sum(len(self.training_calls(worker)) for worker in self.workers)
        last = self.files.metrics[-1] if self.files.metrics else {}
        elements = finite(last.get("elements_up", 0.0))
        return int(elements / calls) if calls and 0 < elements < MAX_NUMBER else 0

    def round_ends(self) -> Floats:
        """Return the end times of rounds: of updates of the first server, or of steps of the first worker."""
        updates = self.updates()
        if updates is not None and len(updates):
            return np.sort(updates.end_s)
        calls = self.training_calls(self.workers[0])
        most = max(MAX_ROWS // len(calls), 1)
        steps = np.clip(np.rint(calls.samples / max(self.batch_size, 1)), 1, most)
        parts = [
            start + (end - start) * np.arange(1, int(count) + 1) / count
            for start, end, count in zip(calls.start_s, calls.end_s, steps, strict=True)
        ]
        return np.sort(np.concatenate(parts))

    def interruptions(self) -> Floats:
        """Return the start times of calls outside of training: for evaluations, checkpoints and the state of a run.

        Calls that an actor runs in at least half of the rounds are part of the training.
        """
        often = len(self.round_ends()) / 2
        starts = [
            calls.start_s
            for (_, name), calls in self.calls.items()
            if name not in _PARTS_OF_TRAINING and len(calls) < often
        ]
        return np.sort(np.concatenate(starts)) if starts else np.empty(0)

    def start_s(self) -> float:
        """Return the seconds before the regular rounds, in which actors connect, compile code and fill caches."""
        rounds_s = self.seconds_of_rounds()[0]
        return max(float(self.round_ends()[WARM_UP] - (WARM_UP + 1) * np.median(rounds_s)), 0.0)

    def serve_s(self) -> float:
        """Return the seconds until the servers were constructed, a part of `start_s`; 0 without servers."""
        ends = [
            calls.end_s.min() for (actor, name), calls in self.calls.items() if _is_server(actor) and name == "__init__"
        ]
        return min(float(max(ends, default=0.0)), self.start_s())

    def seconds_of_rounds(self) -> tuple[Floats, Floats]:
        """Return the seconds of rounds, and the seconds between two rounds in which the run was interrupted."""
        ends, marks = self.round_ends()[WARM_UP:], self.interruptions()
        gaps = np.diff(ends)
        interrupted = np.searchsorted(marks, ends[1:]) > np.searchsorted(marks, ends[:-1])
        return gaps[~interrupted], gaps[interrupted]


def read_measured(run_dir: str | os.PathLike[str], *, allow_simulated: bool = False) -> MeasuredRun:
    """Read the measurements of a finished run.

    Parameters
    ----------
    allow_simulated : whether a run in virtual time may be read, for tests and for predictions.

    Raises
    ------
    ConfigurationError : there is no such run, it did not finish, its time is virtual, or it has no usable trace.
    """
    files = read_run(run_dir)
    where = f"the run {str(files.folder)!r}"
    if files.is_virtual and not allow_simulated:
        raise ConfigurationError(
            f"{where} used the engine 'simulated', whose times are those of a model: give runs of another engine"
        )
    if not files.finished:
        damaged = [note for note in files.notes if note.startswith("summary.json")]
        if damaged:
            raise ConfigurationError(f"{where} is damaged: {damaged[0]}")
        raise ConfigurationError(
            f"{where} did not finish: resume it with 'chimera train --resume', or give another run"
        )
    notes: list[str] = []
    calls = columns(itertools.islice(read_trace(files.folder, notes), MAX_ROWS))
    if not calls:
        raise ConfigurationError(f"{where} has no trace: {files.folder / 'trace.jsonl'} is missing or empty")
    run = MeasuredRun(files, calls, tuple(notes))
    if not run.workers:
        private = files.summary.get("privacy") or files.experiment.get("train", {}).get("privacy")
        has_none = "is private, so its trace has no samples" if private else "has a trace without samples"
        raise ConfigurationError(f"{where} {has_none}: times per sample cannot be computed")
    if len(run.round_ends()) <= WARM_UP + 2:
        raise ConfigurationError(f"{where} has too few rounds: train for at least a hundred")
    if len(run.seconds_of_rounds()[0]) <= WARM_UP:
        raise ConfigurationError(
            f"evaluations or rows of the log interrupt each round of {where[4:]}: set train.evaluate_every and"
            " train.log_every to at least 20"
        )
    return run


def until_received(calls: Calls, updates: Calls) -> Calls:
    """Return the calls of one worker without the work after the server had all results of their round.

    A worker continues for some microseconds after it has sent its result. If the result wakes the server on the worker's
    processor, the call even lasts until the server has finished. This time would count twice in a round. A call that starts
    after the end of its update is unchanged: the trace lacks a call before it, so the update is that of another round.

    Parameters
    ----------
    calls : calls of one worker, one in each round.
    updates : updates of the server, one in each round. They wait for all results, then work.
    """
    count = min(len(calls), len(updates))
    received_s = (updates.end_s - updates.work_s)[:count]
    after_s = np.zeros(len(calls))
    after_s[:count] = np.clip(calls.end_s[:count] - received_s, 0.0, calls.work_s[:count])
    after_s[:count][calls.start_s[:count] >= updates.end_s[:count]] = 0.0
    return replace(calls, work_s=calls.work_s - after_s, after_s=after_s)


def _is_server(actor: str) -> bool:
    return actor.startswith("server")


def _is_worker(actor: str) -> bool:
    return actor.startswith("worker")


def columns(rows: Iterable[TraceRow]) -> dict[tuple[str, str], Calls]:
    """Return the calls in the rows of a trace, by actor and name; calls that failed are left out."""
    found: dict[tuple[str, str], array[float]] = defaultdict(lambda: array("d"))
    reached: dict[str, float] = {}
    for row, start_s, end_s in on_one_clock(rows):
        key = row.actor, row.call
        if row.error or not _usable(row) or (key not in found and len(found) >= _MAX_KINDS):
            continue
        before = min(row.transfer_s, max(start_s - reached.get(row.actor, -MAX_NUMBER), 0.0))
        reached[row.actor] = end_s
        work_s = max(end_s - start_s - row.wait_s - (row.transfer_s - before), 0.0)
        found[key].extend((start_s, end_s, work_s, before, row.samples, row.bytes_in, row.bytes_out, 0.0))
    calls: dict[tuple[str, str], Calls] = {}
    for key, rows_of_key in found.items():
        columns = np.frombuffer(rows_of_key).reshape(-1, 8)
        calls[key] = Calls(*columns[np.argsort(columns[:, 0], kind="stable")].T)
    return calls


def _usable(row: TraceRow) -> bool:
    """Return whether the row of a call can be one of a real run."""
    counts = row.samples, row.bytes_in, row.bytes_out
    return all(0 <= count < MAX_NUMBER for count in counts) and row.end_s >= row.start_s

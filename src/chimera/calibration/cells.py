"""Medians of calls in short periods of a run: the data points of a calibration, and the units of its bootstrap."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from chimera.calibration.measured_run import WARM_UP, Calls, Floats, MeasuredRun

PERIODS = 10
"""Consecutive periods into which the calls of one kind are divided: their differences show how the times drift."""
_MIN_CALLS, _MIN_TRANSFERS = 5, 3


@dataclass(frozen=True, eq=False)
class Group:
    """Calls with the same work, of one actor of one run.

    Attributes
    ----------
    run, actor : names.
    work_s : the median seconds in each period, shape (periods,).
    batches, samples, elements : the work of each call.
    factors : seconds of each call divided by the median of all, shape (calls,).
    """

    run: str
    actor: str
    work_s: Floats
    batches: float = 0.0
    samples: float = 0.0
    elements: float = 0.0
    factors: Floats = field(default_factory=lambda: np.empty(0))

    def median(self, drawn: NDArray[np.intp] | None = None) -> float:
        """Return the median over all periods, or over those that a bootstrap has drawn."""
        return float(np.median(self.work_s if drawn is None else self.work_s[drawn]))

    def relative_error(self) -> float:
        """Return the relative standard error of the median of all calls, if their logarithms are normal."""
        count = len(self.factors)
        return 1.253 * float(np.std(np.log(self.factors))) / count**0.5 if count else 0.0


def periods_of(values: Floats) -> Floats:
    """Return the medians of consecutive periods; if there are few values, of fewer periods."""
    count = max(1, min(PERIODS, len(values) // _MIN_CALLS))
    return np.array([np.median(part) for part in np.array_split(values, count)])


def batch_groups(run: MeasuredRun) -> Iterator[Group]:
    """Yield the training calls of each worker, by their numbers of samples; rare numbers are left out."""
    for worker in run.workers:
        calls = run.training_calls(worker).after_warm_up()
        sizes, counts = np.unique(calls.samples, return_counts=True)
        for size, count in zip(sizes, counts, strict=True):
            if count < max(_MIN_CALLS, 0.05 * len(calls)):
                continue
            work_s = calls.work_s[calls.samples == size]
            batches = max(1.0, math.ceil(size / run.batch_size)) if run.batch_size else 1.0
            yield _group(run, worker, work_s, batches=batches, samples=float(size))


def update_groups(run: MeasuredRun) -> Iterator[Group]:
    """Yield the updates of each server."""
    elements = run.elements_per_update()
    for (actor, name), calls in run.calls.items():
        if name == "update" and len(calls) >= _MIN_CALLS and elements:
            yield _group(run, actor, calls.after_warm_up().work_s, elements=elements)


def call_groups(run: MeasuredRun) -> Iterator[Group]:
    """Yield the calls without data and samples, which take the fixed time of a call."""
    kept = [calls for (_, name), calls in run.calls.items() if name not in ("__init__", "update") and _is_bare(calls)]
    if sum(map(len, kept)) >= _MIN_CALLS:
        work_s = np.concatenate([calls.work_s for calls in kept])
        order = np.argsort(np.concatenate([calls.start_s for calls in kept]))
        yield _group(run, "all actors", work_s[order])


def transfer_groups(run: MeasuredRun) -> Iterator[Group]:
    """Yield the transfer times of calls without data, by actor and name."""
    for (actor, name), calls in run.calls.items():
        if name != "__init__" and len(calls) >= _MIN_TRANSFERS and not calls.bytes_in.any():
            yield _group(run, actor, calls.transfer_s)


@dataclass(frozen=True, eq=False)
class Rounds:
    """The whole rounds of a synchronous run with one server, in which each worker has one call.

    Attributes
    ----------
    seconds : seconds of each round, shape (rounds,).
    work_s : seconds of the workers' calls and of their delays, shape (rounds, workers). The delay of a call is the time from
        the last update to the start of the work, minus the median of these times. The message was slow,
        or the processor busy.
    """

    seconds: Floats
    work_s: Floats

    @property
    def factors(self) -> Floats:
        """The seconds of each call divided by the median of its worker, shape (calls,)."""
        return np.asarray((self.work_s / np.median(self.work_s, axis=0)).ravel())


def synchronous_rounds(run: MeasuredRun) -> Rounds | None:
    """Return the rounds that no other call interrupted; None if the run is not synchronous with one server."""
    updates = run.updates()
    if updates is None or len(updates) <= _MIN_CALLS:
        return None
    calls = [run.training_calls(worker) for worker in run.workers]
    if any(abs(len(each) - len(updates)) > 1 for each in calls) or ("server 1", "update") in run.calls:
        return None
    count = min(len(updates), *(len(each) for each in calls))
    marks, ends = run.interruptions(), updates.end_s[:count]
    whole = np.searchsorted(marks, ends[1:]) == np.searchsorted(marks, ends[:-1])
    whole[: min(WARM_UP, count // 4)] = False
    if not whole.any():
        return None
    return Rounds(np.diff(ends)[whole], np.column_stack([_with_delays(each, ends)[whole] for each in calls]))


def _with_delays(calls: Calls, ends: Floats) -> Floats:
    """Return the work of one worker in each round but the first, with the delays of `Rounds`; ``ends`` are those of updates."""
    count = len(ends)
    before_s = calls.end_s[1:count] - calls.after_s[1:count] - ends[:-1] - calls.work_s[1:count]
    return np.asarray(np.maximum(calls.work_s[1:count] + np.maximum(before_s - np.median(before_s), 0.0), 1e-9))


def message_bytes(run: MeasuredRun) -> float:
    """Return the bytes on the path of a synchronous round: all weights leave the server, and the last gradient arrives."""
    first = run.training_calls(run.workers[0])
    return float(len(run.workers) * np.median(first.bytes_in) + np.median(first.bytes_out))


def draw(groups: Sequence[Group], rng: np.random.Generator) -> list[float]:
    """Return the medians of a bootstrap sample: each group draws periods with replacement, as many as it has.

    The median of a group with few periods varies by the standard error of the median of its calls.
    """
    return [
        group.median(rng.integers(0, len(group.work_s), len(group.work_s)))
        if len(group.work_s) >= _MIN_CALLS
        else group.median() * float(np.exp(rng.normal(0.0, group.relative_error())))
        for group in groups
    ]


def _group(run: MeasuredRun, actor: str, work_s: Floats, **work: float) -> Group:
    median = max(float(np.median(work_s)), 1e-9)
    return Group(run.name, actor, periods_of(work_s), factors=np.maximum(work_s, 1e-9) / median, **work)


def _is_bare(calls: Calls) -> bool:
    return not (calls.samples.any() or calls.bytes_in.any() or calls.bytes_out.any())

"""The fit of the simulated engine's parameters to the calls of some runs, and the deviations from the fit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from chimera.calibration.cells import (
    Group,
    Rounds,
    batch_groups,
    call_groups,
    draw,
    message_bytes,
    periods_of,
    synchronous_rounds,
    transfer_groups,
    update_groups,
)
from chimera.calibration.estimates import (
    PARAMETERS,
    Point,
    fit_batches,
    fit_call,
    fit_elements,
    fit_network,
    separable,
    slow_workers,
)
from chimera.calibration.measured_run import IN_MEMORY, Floats, MeasuredRun
from chimera.calibration.stragglers import Stragglers, fit_stragglers
from chimera.core.errors import ConfigurationError
from chimera.training.plugin import label

ROUND = "round"
_ROUNDS_DRAWN = 4000
_LARGE_MISFIT = math.log(1.25)


class Fit:
    """The groups of calls of some runs, and the estimates from them.

    Parameters
    ----------
    runs : measured runs of one engine.
    codec_starts : seconds that the start of a run with a codec takes longer, by name; they are no part of the estimates.
    """

    def __init__(self, runs: Sequence[MeasuredRun], codec_starts: Mapping[str, float] = MappingProxyType({})) -> None:
        self.runs = runs
        self.calls = [group for run in runs for group in call_groups(run)]
        self.batches = [group for run in runs for group in batch_groups(run)]
        self.updates = [group for run in runs for group in update_groups(run)]
        if not self.batches:
            raise ConfigurationError("no run has enough training calls for a calibration: train for a hundred rounds")
        self.in_memory = runs[0].engine in IN_MEMORY
        rounds = [(run, synchronous_rounds(run)) for run in runs]
        whole = [each for _, each in rounds if each is not None]
        self.stragglers = fit_stragglers(self.factors(whole), [each.work_s for each in whole])
        self.rounds = [_RunRounds(run, each.seconds, self.stragglers) for run, each in rounds if each is not None]
        self.transfers = [group for run in runs for group in transfer_groups(run)]
        loads_s = np.array([codec_starts.get(label(run.files.plugin("codec")), 0.0) for run in runs])
        self.starts = np.array([(run.start_s(), run.serve_s()) for run in runs])
        self.starts[:, 0] = np.maximum(self.starts[:, 0] - loads_s, self.starts[:, 1])
        self.evaluations = [_evaluations(run) for run in runs]
        self.slow: dict[str, float] = {}
        self.slow = slow_workers(self.batches, [self._batch_s(group, self.estimate()) for group in self.batches])

    def estimate(self, rng: np.random.Generator | None = None) -> dict[str, float]:
        """Return the estimates by parameter; with ``rng``, those of a bootstrap sample."""

        def medians(groups: Sequence[Group]) -> list[float]:
            return [group.median() for group in groups] if rng is None else draw(groups, rng)

        call_s = fit_call(medians(self.calls))
        factors = [self.slow.get(group.actor, 1.0) for group in self.batches]
        work = [median / factor for median, factor in zip(medians(self.batches), factors, strict=True)]
        call_s = min(call_s, 0.9 * min(work))
        batch_s, sample_s = fit_batches(self.batches, work, call_s)
        element_s = fit_elements(self.updates, medians(self.updates), call_s)
        work_values = {"seconds_per_call": call_s, "seconds_per_batch": batch_s, "seconds_per_sample": sample_s}
        work_values |= {"seconds_per_element": element_s}
        sizes = np.array([0.0 if self.in_memory else each.size for each in self.rounds])
        rounds_s = medians([each.group for each in self.rounds])
        waits = np.array(
            [max(s - self._work_s(r, work_values), 0.0) for s, r in zip(rounds_s, self.rounds, strict=True)]
        )
        # The largest median counts: calls of actors on the driver's machine, or sent with an earlier call, take less.
        farthest_s = max(medians(self.transfers), default=0.0)
        latency_s, byte_s = fit_network(sizes, waits, farthest_s or None)
        gaps = np.concatenate(self.evaluations)
        if rng is not None and len(gaps):
            gaps = rng.choice(gaps, len(gaps))
        evaluation_s = max(float(gaps.mean()), 0.0) if len(gaps) else 0.0
        starts = self.starts if rng is None else rng.choice(self.starts, len(self.starts))
        found = call_s, batch_s, sample_s, element_s, latency_s, byte_s, evaluation_s, *starts.mean(axis=0).tolist()
        return dict(zip(PARAMETERS, found, strict=True))

    def points(self, values: Mapping[str, float]) -> list[Point]:
        """Return the measured and the fitted seconds of all groups."""
        found = [
            Point(
                f"call, {group.samples:g} samples", group.run, group.actor, group.median(), self._batch_s(group, values)
            )
            for group in self.batches
        ]
        found += [
            Point("update", group.run, group.actor, group.median(), _update_s(group, values)) for group in self.updates
        ]
        return found + [
            Point(ROUND, r.group.run, "", r.group.median(), self._work_s(r, values) + self._waits_s(r.size, values))
            for r in self.rounds
        ]

    def misfit(self, values: Mapping[str, float]) -> Floats:
        """Return a standard error by parameter for the differences between groups that the model does not explain."""
        ratios: list[list[float]] = [[], []]
        for point in self.points(values):
            if point.what != ROUND:
                ratios[point.what == "update"].append(point.misfit())
        batch, update = (float(np.sqrt(np.mean(np.square(each)) / len(each))) if each else 0.0 for each in ratios)
        relative = {"seconds_per_batch": batch, "seconds_per_sample": batch, "seconds_per_element": update}
        return np.array([relative.get(name, 0.0) * values[name] for name in PARAMETERS])

    def factors(self, rounds: Sequence[Rounds]) -> Floats:
        """Return the factors of the calls of synchronous rounds; if there are none, those of all training calls."""
        return np.concatenate([each.factors for each in rounds or self.batches])

    def spread(self, values: Mapping[str, float]) -> float:
        """Return sigma of the factors of workers that are not in `slow`; 0 if all share one machine."""
        if self.in_memory:
            return 0.0
        logs: dict[str, list[float]] = {}
        for group in self.batches:
            if group.actor not in self.slow:
                ratio = np.log(group.median() / self._batch_s(group, values))
                logs.setdefault(group.actor, []).append(float(ratio))
        means = [float(np.mean(each)) for each in logs.values()]
        return float(np.std(means, ddof=1)) if len(means) > 1 else 0.0

    def warnings(self, values: Mapping[str, float]) -> list[str]:
        """Return sentences about what the runs cannot show, and about what ``values`` do not explain."""
        found = [f"{run.name}: {note}" for run in self.runs for note in (*run.notes, *run.files.notes)]
        worst = max((point for point in self.points(values) if point.what != ROUND), key=Point.misfit)
        if worst.misfit() > _LARGE_MISFIT:
            found.append(
                f"the median of '{worst.what}' in the run {worst.run} is {worst.measured_s:.3g} s, but {worst.fitted_s:.3g} s"
                " fit all runs best: was the machine under other load?"
            )
        if not separable(self.batches):
            found.append(
                "all runs have the same batch size, so the fixed time of a batch cannot be separated from that of a sample:"
                " predictions hold for this batch size; add a run with another one"
            )
        workers = {group.actor for group in self.batches}
        if len(workers) < 3:
            found.append(f"the spread of the speed of machines is known from {len(workers)} workers only")
        if not self.calls:
            found.append("no run has calls without work, so the fixed time of a call counts as 0")
        if not self.updates:
            found.append("no run has a parameter server, so the time of a server counts as 0")
        sizes = [each.size for each in self.rounds]
        if not sizes:
            found.append(
                "no run is synchronous with one server: latency comes from calls without data, and bytes take no time"
            )
        elif not self.in_memory and max(sizes) < 1.2 * min(sizes):
            found.append(
                "all runs have messages of the same size: latency comes from calls without data, bandwidth from the rest"
            )
        if not sum(map(len, self.evaluations)):
            found.append("no run was interrupted by an evaluation, so an evaluation takes no time in predictions")
        return found

    def _batch_s(self, group: Group, values: Mapping[str, float]) -> float:
        work_s = values["seconds_per_batch"] * group.batches + values["seconds_per_sample"] * group.samples
        return self.slow.get(group.actor, 1.0) * (values["seconds_per_call"] + work_s)

    def _work_s(self, rounds: _RunRounds, values: Mapping[str, float]) -> float:
        """Return the median seconds, over draws of stragglers, of the slowest worker and then the server in a round."""
        workers, run = rounds.factors[:, :-1], rounds.run
        slow = [self.slow.get(worker, 1.0) for worker in run.workers]
        work_s = values["seconds_per_batch"] + values["seconds_per_sample"] * rounds.samples
        slowest_s = (workers * slow).max(axis=1) * (values["seconds_per_call"] + work_s)
        update_s = values["seconds_per_call"] + values["seconds_per_element"] * run.elements_per_update()
        return float(np.median(slowest_s + rounds.factors[:, -1] * update_s))

    def _waits_s(self, size: float, values: Mapping[str, float]) -> float:
        return 2 * values["latency_s"] + (0.0 if self.in_memory else values["seconds_per_byte"] * size)


class _RunRounds:
    """The rounds of a synchronous run.

    Attributes
    ----------
    group : seconds of the rounds.
    size : bytes of the messages of a round.
    samples : samples of a call.
    factors : drawn factors of the workers, which may be correlated, and of the server, shape (draws, workers + 1).
    """

    def __init__(self, run: MeasuredRun, seconds: Floats, stragglers: Stragglers) -> None:
        self.run, self.size = run, message_bytes(run)
        self.group = Group(run.name, "", periods_of(seconds))
        self.samples = float(np.median(run.training_calls(run.workers[0]).samples))
        rng = np.random.default_rng(0)
        self.factors = np.column_stack(
            [
                stragglers.drawn(rng, _ROUNDS_DRAWN, len(run.workers)),
                stragglers.drawn(rng, _ROUNDS_DRAWN, 1),
            ]
        )


def _update_s(group: Group, values: Mapping[str, float]) -> float:
    return values["seconds_per_call"] + values["seconds_per_element"] * group.elements


def _evaluations(run: MeasuredRun) -> Floats:
    """Return the seconds that evaluations, and checkpoints with them, added between two rounds."""
    rounds_s, interrupted_s = run.seconds_of_rounds()
    evaluated = sum("loss" in row for row in run.files.metrics)
    if not evaluated or not len(interrupted_s) or not len(rounds_s):
        return np.empty(0)
    extra_s = np.maximum(interrupted_s - np.median(rounds_s), 0.0)
    return np.asarray(np.full(min(evaluated, 1000), extra_s.sum() / evaluated) * _around_one(extra_s, evaluated))


def _around_one(extra_s: Floats, count: int) -> Floats:
    """Return ``count`` factors with mean 1 that vary as the largest interruptions do."""
    largest = np.sort(extra_s)[::-1][:count]
    factors = np.resize(largest / max(largest.mean(), 1e-12), min(count, 1000))
    return np.asarray(factors / max(factors.mean(), 1e-12))

"""The usage of a run: time, samples and bytes, counted from the engine's trace."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import msgspec

from chimera.core.engine import Engine
from chimera.core.trace import TraceRow
from chimera.training.cluster.cluster import TrainingCluster
from chimera.training.messages.tally import Tally
from chimera.training.progress.budget import Counters
from chimera.training.progress.history import History
from chimera.training.progress.peak import Peak

_STEERING = {"go_to", "reduce_rates", "follow", "known", "attack", "stands_at", "remembers", "forget_answer", "tally"}
"""Calls that position a worker, or report about it; they move no parameters and are never counted."""
_UNCOUNTED = {
    "weights",
    "buffers",
    "load_buffers",
    "state",
    "codec_states",
    "local_state",
    "personal",
    "evaluate",
    "step",
    "mean",
    "consensus_distance",
    *_STEERING,
}
"""Calls that the training loop makes between rounds; their bytes are not counted."""
_COPIES = {"host", "train_and_serve"}
"""Calls that copy slices between a server and the worker that steps them. Their number depends on the speed of the machine."""
_TO_CLOUD, _FROM_CLOUD = "change", "adopt"
"""Calls of edge servers whose results, or arguments, are messages with the cloud. The rows of clients count all other calls."""


class UsageMeter:
    """Counts the usage of a run from the engine's trace and clock.

    Parameters
    ----------
    traced : called with the new trace rows, see `Strategy.traced`.
    counted : the strategy counts samples itself.
    peak : the peak of a worker.

    Attributes
    ----------
    counters : usage so far.
    samples_by_worker : samples that each worker processed, by name; lost rounds included.
    worked : names of the workers that computed since their last tally.
    peak_mb : peak memory that each worker reported, in megabytes, by name.
    fill : last reported fill of each worker's input queue, 0 to 1, by name.
    began_s : start of training on the engine's clock.
    """

    def __init__(
        self,
        engine: Engine,
        cluster: TrainingCluster,
        history: History,
        traced: Callable[[Sequence[TraceRow], TrainingCluster], None],
        *,
        counted: bool = False,
        peak: Peak,
    ) -> None:
        self._counted, self._peak = counted, peak
        self._engine, self._cluster, self._history, self._traced = engine, cluster, history, traced
        self.counters = Counters()
        self.peak_mb: dict[str, float] = {}
        self.fill: dict[str, float] = {}
        self._device_peaks: dict[str, float] = {}
        self.samples_by_worker: Counter[str] = Counter()
        self.worked: set[str] = set()
        self.began_s = engine.now()
        self._since = 0, 0, 0
        self._computed: dict[tuple[str, str], int] = {}  # samples of the last call that computed, by worker and call
        self._repeating = False

    def seconds(self) -> float:
        """Return the seconds since training started, on the engine's clock."""
        return self._engine.now() - self.began_s

    def peak_flops(self) -> float | None:
        """Return the peak of all workers that the run has had together, in FLOPs per second; None if it is not known."""
        return self._peak.total(self._device_peaks, self._cluster.rank_of, virtual=self._engine.virtual_time)

    def count(self, between_rounds: bool = False) -> None:
        """Update the counters from the trace. Calls ``between_rounds``, such as evaluation, count as time and not as bytes."""
        rows = self._engine.trace()
        self._traced(rows, self._cluster)
        began_s, shifted = self.began_s, msgspec.structs.replace
        self._history.add_trace(shifted(r, start_s=r.start_s - began_s, end_s=r.end_s - began_s) for r in rows)
        workers, used = self._cluster.rank_of, self.counters
        used.seconds = self.seconds()
        ignored = _UNCOUNTED if between_rounds else _STEERING
        if self._cluster.edge_names:
            self._count_cloud([row for row in rows if row.actor in self._cluster.edge_names])
        rows = [row for row in rows if row.call not in ignored and row.actor in workers]
        for row in rows:
            self.samples_by_worker[row.actor] += row.samples
        self.worked.update([row.actor for row in rows])
        used.samples += 0 if self._counted else self._samples_of(rows)
        rows = [row for row in rows if row.call not in _COPIES]
        used.bytes_up += sum([row.bytes_out for row in rows])
        used.bytes_down += sum([row.bytes_in for row in rows])

    def _samples_of(self, rows: Iterable[TraceRow]) -> int:
        """Return the samples of these calls, and those that a worker computed before a loss if it returns a kept result."""
        samples = 0
        for row in rows:
            samples += row.samples
            if row.samples:
                self._computed[row.actor, row.call] = row.samples
            elif self._repeating:  # `leave_out_repeats` has left them out
                samples += self._computed.get((row.actor, row.call), 0)
        return samples

    def begin(self, samples_per_round: int) -> None:
        """Start to count rounds, each of at most ``samples_per_round`` samples, or of the mean of the run if that is more."""
        used = self.counters
        self._repeating = False
        mean = math.ceil(used.samples / used.rounds) if used.rounds else 0
        self._since = used.rounds, used.samples, max(samples_per_round, mean)

    def leave_out_repeats(self) -> None:
        """Count only samples of rounds that were completed since `begin`: a round that a loss interrupted is repeated."""
        rounds, samples, most = self._since
        self._repeating = True
        if not self._counted:
            used = self.counters
            used.samples = min(used.samples, samples + (used.rounds - rounds) * most)

    def _count_cloud(self, rows: Iterable[TraceRow]) -> None:
        """Count the messages between edge servers and the cloud, from the rows of edge servers."""
        for row in rows:
            self.counters.bytes_up += row.bytes_out if row.call == _TO_CLOUD else 0
            self.counters.bytes_down += row.bytes_in if row.call == _FROM_CLOUD else 0

    def add(self, tallies: Iterable[Tally]) -> None:
        """Add the messages, memory and queue fills that workers reported."""
        used = self.counters
        for tally in tallies:
            used.elements_up += tally.elements_up
            used.packed_up += tally.packed_up
            used.elements_down += tally.elements_down
            used.packed_down += tally.packed_down
            used.tokens += tally.tokens
            used.flops += tally.flops
            if tally.peak_flops:
                self._device_peaks[tally.worker] = tally.peak_flops
            if tally.peak_bytes:
                self.peak_mb[tally.worker] = max(self.peak_mb.get(tally.worker, 0.0), tally.peak_bytes / 1e6)
            if tally.fill is not None:
                self.fill[tally.worker] = tally.fill

    def go_back_to(self, then: Counters) -> int:
        """Set rounds and samples back to earlier counters; return the number of lost rounds."""
        used = self.counters
        lost = used.rounds - then.rounds
        self.counters = replace(used, rounds=then.rounds, samples=then.samples, lost_rounds=used.lost_rounds + lost)
        self._since = then.rounds, then.samples, self._since[2]
        return lost

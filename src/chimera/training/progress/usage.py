"""What a run has used so far, counted from the trace."""

from __future__ import annotations

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

_STEERING = {"go_to", "follow", "known", "attack", "stands_at", "remembers", "forget_answer"}
"""Calls that say to a worker where to go on; they move no parameters."""
_LOOKS = {
    "weights",
    "tally",
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
"""Calls that the loop itself makes, between rounds."""


class UsageMeter:
    """Reads the engine's trace and its clock.

    Parameters
    ----------
    traced : is shown the rows too, see `Strategy.traced`.
    counted : whether somebody else counts the samples of the run.

    Attributes
    ----------
    counters : what was used.
    samples_by_worker : what each worker processed, by name; it never goes back.
    worked : the names of those that have done anything since their tallies were last asked for.
    peak_mb : the most memory that each worker says to have taken, by name.
    fill : how full the queue before each worker was when it last told, by name, where there are queues.
    began_s : when training began, on the engine's clock.
    """

    def __init__(
        self,
        engine: Engine,
        cluster: TrainingCluster,
        history: History,
        traced: Callable[[Sequence[TraceRow], TrainingCluster], None],
        *,
        counted: bool = False,
    ) -> None:
        self._counted = counted
        self._engine, self._cluster, self._history, self._traced = engine, cluster, history, traced
        self.counters = Counters()
        self.peak_mb: dict[str, float] = {}
        self.fill: dict[str, float] = {}
        self.samples_by_worker: Counter[str] = Counter()
        self.worked: set[str] = set()
        self.began_s = engine.now()

    def seconds(self) -> float:
        """Return how long training has lasted, in the engine's time."""
        return self._engine.now() - self.began_s

    def count(self, looked: bool = False) -> None:
        """Bring the counters up to date from the trace. What looking costs is in the seconds, not in the bytes."""
        rows = self._engine.trace()
        self._traced(rows, self._cluster)
        began_s, shifted = self.began_s, msgspec.structs.replace
        self._history.add_trace(shifted(r, start_s=r.start_s - began_s, end_s=r.end_s - began_s) for r in rows)
        workers = set(self._cluster.names)
        used = self.counters
        used.seconds = self.seconds()
        passed_over = _LOOKS if looked else _STEERING
        rows = [row for row in rows if row.call not in passed_over and row.actor in workers]
        for row in rows:
            self.samples_by_worker[row.actor] += row.samples
        self.worked.update([row.actor for row in rows])
        used.samples += 0 if self._counted else sum([row.samples for row in rows])
        used.bytes_up += sum([row.bytes_out for row in rows])
        used.bytes_down += sum([row.bytes_in for row in rows])

    def add(self, tallies: Iterable[Tally]) -> None:
        """Count the messages of vectors that the workers tell of, and note the memory."""
        used = self.counters
        for tally in tallies:
            used.elements_up += tally.elements_up
            used.packed_up += tally.packed_up
            used.elements_down += tally.elements_down
            used.packed_down += tally.packed_down
            if tally.peak_bytes:
                self.peak_mb[tally.worker] = max(self.peak_mb.get(tally.worker, 0.0), tally.peak_bytes / 1e6)
            if tally.fill is not None:
                self.fill[tally.worker] = tally.fill

    def go_back_to(self, then: Counters) -> int:
        """Set the counters back to rounds and samples that stood before; return how many rounds that loses."""
        used = self.counters
        lost = used.rounds - then.rounds
        self.counters = replace(used, rounds=then.rounds, samples=then.samples, lost_rounds=used.lost_rounds + lost)
        return lost

"""What the strategies that cut a model over the workers have in common (Narayanan et al. 2021, section 3)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from chimera.core.errors import ConfigurationError
from chimera.core.trace import TraceRow
from chimera.strategies.bubble import Bubble
from chimera.strategies.parts import Parts
from chimera.strategies.schedules import SCHEDULES, in_turn
from chimera.strategies.strategy import Cluster, Round, Strategy


class Shape(NamedTuple):
    """How workers stand: their number is the product. Slices follow one another, then stages, then replicas."""

    replicas: int
    stages: int
    slices: int

    @property
    def parts(self) -> int:
        """How many workers hold the whole model together."""
        return self.stages * self.slices


class CutOverWorkers(Strategy):
    """Micro-batches flow through stages of layers, each cut into slices, and all of that is there several times.

    Activations go from each slice of a stage to the same slice of the next, their gradients come back. Slices of one stage
    meet in the middle of their passes; those who hold the same slice of the same stage take the mean of their gradients.

    Parameters
    ----------
    micro_batches : into how many pieces a batch is cut.
    schedule : in which order stages take them, one of `SCHEDULES`.
    """

    family = "model-parallel"
    sends = "nothing"
    replicas = "parts"

    def __init__(self, *, micro_batches: int = 1, schedule: Literal["1f1b", "gpipe"] = "1f1b") -> None:
        at_least_1(micro_batches=micro_batches)
        if schedule not in SCHEDULES:
            raise ConfigurationError(f"schedule is {' or '.join(SCHEDULES)}, not {schedule!r}")
        self._micro_batches, self._schedule = micro_batches, SCHEDULES[schedule]
        self._bubble = Bubble(2 * micro_batches)

    @abstractmethod
    def shape(self, workers: int) -> Shape:
        """Return how so many workers stand.

        Raises
        ------
        ConfigurationError : they cannot.
        """

    @abstractmethod
    def parts(self, workers: int) -> Parts:
        """Return how the model is cut over so many workers."""

    def rounds(self, cluster: Cluster) -> Iterator[Round]:
        """Yield one step of all workers a round."""
        workers, shape = cluster.workers, self.shape(len(cluster.workers))
        self._bubble.forget()  # of steps before a loss or a look
        tasks = list(in_turn(self._schedule, shape.stages, self._micro_batches))
        stages = [workers[first : first + shape.slices] for first in range(0, len(workers), shape.slices)]
        teams = [cluster.group(stage) if shape.slices > 1 else None for stage in stages]
        copies = [cluster.group(each) if shape.replicas > 1 else None for each in self.holders(cluster)]
        while True:
            ends = [
                ref
                for first in range(0, len(stages), shape.stages)
                for ref in self._flow(stages[first : first + shape.stages], teams[first : first + shape.stages], tasks)
            ]
            steps = [worker.update(copies[place % shape.parts]) for place, worker in enumerate(workers)]
            yield Round([*ends, *steps])

    def _flow(self, stages: Sequence[Sequence[Any]], teams: Sequence[Any], tasks: Sequence[Any]) -> Iterator[Any]:
        """Let the micro-batches of a step go through and back; yield what the first stage returns, of which nothing is needed.

        Whatever failed on the way is raised there.
        """
        held: dict[tuple[int, str, int], list[Any]] = {}
        for stage, phase, micro in tasks:
            source = (stage - 1 if phase == "forward" else stage + 1, phase, micro)
            last = phase == "backward" and stage == len(stages) - 1
            given = held.pop((stage, "forward", micro) if last else source, [None] * len(stages[stage]))
            calls = zip(stages[stage], given, strict=True)
            made = [getattr(worker, phase)(micro, each, teams[stage]) for worker, each in calls]
            if phase == "backward" and stage == 0:
                yield from made
            else:
                held[stage, phase, micro] = made

    def holders(self, cluster: Cluster) -> Sequence[Sequence[Any]]:
        """Return who has each slice of each stage, in all replicas."""
        parts = self.shape(len(cluster.workers)).parts
        return [cluster.workers[part::parts] for part in range(parts)]

    def world_size(self, workers: int) -> int:
        """Return ``workers``, if they can stand so."""
        self.shape(workers)
        return workers

    def batches_per_round(self, workers: int) -> int:
        """Return one batch for each replica."""
        return self.shape(workers).replicas

    def traced(self, rows: Sequence[TraceRow], cluster: Cluster) -> None:
        """Learn from the calls that ended how long workers waited."""
        self._bubble.add(rows, [worker.name for worker in cluster.workers])

    def state(self) -> Mapping[str, float]:
        """Return how long workers have waited."""
        return self._bubble.state()

    def restore(self, state: Mapping[str, float]) -> None:
        """Go on counting from there."""
        self._bubble.restore(state)

    def figures(self) -> Mapping[str, Any]:
        """Return the share of their time that workers waited for each other, from a step's first pass to its last."""
        share = self._bubble.share
        return {} if share is None else {"bubble": share}


def at_least_1(**options: int) -> None:
    """Raise ConfigurationError if one of these is less."""
    for key, value in options.items():
        if value < 1:
            raise ConfigurationError(f"{key} must be at least 1, not {value}")


def evenly(workers: int, count: int, what: str) -> int:
    """Return how many of the workers each of so many gets; raise ConfigurationError if they do not get as many each."""
    if workers % count:
        raise ConfigurationError(f"{workers} workers cannot be parted among {count} {what} evenly")
    return workers // count

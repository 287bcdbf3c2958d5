"""The common part of strategies that cut a model over the workers (Narayanan et al. 2021, section 3)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from chimera.core.errors import ConfigurationError
from chimera.core.trace import TraceRow
from chimera.strategies.cluster import Cluster
from chimera.strategies.model_partition import ModelPartition
from chimera.strategies.pipeline_bubble import PipelineBubble
from chimera.strategies.schedules import SCHEDULES, in_turn
from chimera.strategies.strategy import Round, Strategy


class Shape(NamedTuple):
    """The arrangement of workers; the product is their number. Ranks count slices first, then stages, then replicas."""

    replicas: int
    stages: int
    slices: int

    @property
    def parts(self) -> int:
        """The number of workers that hold the whole model together."""
        return self.stages * self.slices


class ModelParallel(Strategy):
    """Replicas of a pipeline of stages, each cut into slices; micro-batches pass through the stages in turn.

    Each slice of a stage sends its activations to the same slice of the next stage, and receives their gradient. Slices of one
    stage combine partial results during their passes. Workers that hold the same slice of the same stage average their
    gradients.

    Parameters
    ----------
    micro_batches : number of pieces of a batch; default 1.
    schedule : order in which stages process micro-batches, one of `SCHEDULES`; default ``1f1b``.
    """

    family = "model-parallel"
    sends = "nothing"
    replicas = "parts"

    def __init__(self, *, micro_batches: int = 1, schedule: Literal["1f1b", "gpipe"] = "1f1b") -> None:
        at_least_1(micro_batches=micro_batches)
        if schedule not in SCHEDULES:
            raise ConfigurationError(f"schedule is {' or '.join(SCHEDULES)}, not {schedule!r}")
        self._micro_batches, self._schedule = micro_batches, SCHEDULES[schedule]
        self._bubble = PipelineBubble(2 * micro_batches)

    @abstractmethod
    def shape(self, workers: int) -> Shape:
        """Return the arrangement of ``workers`` workers.

        Raises
        ------
        ConfigurationError : this number cannot be arranged.
        """

    @abstractmethod
    def parts(self, workers: int) -> ModelPartition:
        """Return how the model is cut over ``workers`` workers."""

    def rounds(self, cluster: Cluster) -> Iterator[Round]:
        """Yield one step of all workers a round."""
        workers, shape = cluster.workers, self.shape(len(cluster.workers))
        self._bubble.forget()  # rows of steps before a loss or an evaluation
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
        """Issue the forward and backward passes of a step; yield refs of the first stage's results.

        The values are not needed. Their refs raise the errors of all passes before.
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
        """Return the workers that hold each slice of each stage, over all replicas."""
        parts = self.shape(len(cluster.workers)).parts
        return [cluster.workers[part::parts] for part in range(parts)]

    def world_size(self, workers: int) -> int:
        """Return ``workers``, if they can be arranged."""
        self.shape(workers)
        return workers

    def batches_per_round(self, workers: int) -> int:
        """Return one batch for each replica."""
        return self.shape(workers).replicas

    def traced(self, rows: Sequence[TraceRow], cluster: Cluster) -> None:
        """Add the workers' waiting time from the ended calls."""
        self._bubble.add(rows, [worker.name for worker in cluster.workers])

    def state(self) -> Mapping[str, float]:
        """Return the measured times."""
        return self._bubble.state()

    def restore(self, state: Mapping[str, float]) -> None:
        """Continue from the measured times of ``state``."""
        self._bubble.restore(state)

    def figures(self) -> Mapping[str, Any]:
        """Return the share of time that workers waited for each other, from a step's first pass to its last."""
        share = self._bubble.share
        return {} if share is None else {"bubble": share}


def at_least_1(**options: int) -> None:
    """Raise ConfigurationError if one of the options is less than 1."""
    for key, value in options.items():
        if value < 1:
            raise ConfigurationError(f"{key} must be at least 1, not {value}")


def divide_evenly(workers: int, count: int, what: str) -> int:
    """Return the number of workers in each of ``count`` groups; raise ConfigurationError if it is not an integer."""
    if workers % count:
        raise ConfigurationError(f"{workers} workers cannot be parted among {count} {what} evenly")
    return workers // count

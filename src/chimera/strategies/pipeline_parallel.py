"""Pipelines (Huang et al. 2019, "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism")."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from chimera.core.errors import ConfigurationError
from chimera.core.trace import TraceRow
from chimera.strategies.bubble import Bubble
from chimera.strategies.schedules import SCHEDULES, in_turn
from chimera.strategies.strategy import STRATEGIES, Cluster, Parts, Round, Strategy


@STRATEGIES.register("pipeline-parallel")
class PipelineParallel(Strategy):
    """Layers are cut over the workers: GPipe (Huang et al. 2019) and 1F1B (Narayanan et al. 2019).

    The micro-batches of a batch flow through the stages: activations go from one to the next, their gradients come back, and
    each stage steps its own part with the mean over the batch, of which every pipeline has ``batch_size`` samples. The
    weights are those of the whole network trained on one worker. Of the time of S stages a share of (S - 1) / (M + S - 1)
    is spent waiting, with M micro-batches.

    With several ``pipelines`` the workers are parted among them, each reads its own data, and the workers that hold the same
    stage take the mean of their gradients before they step.

    Parameters
    ----------
    micro_batches : into how many pieces a batch is cut; batch normalisation sees each by itself, as in GPipe.
    schedule : ``1f1b``, which holds fewer activations, or ``gpipe``.
    balance : what is spread evenly over the stages: ``parameters``, or the ``time`` that the layers take, measured before
        the run.
    cuts : before which layers the network is cut, from 1; chosen by ``balance`` if not given.
    recompute : keep only the inputs of each stage and compute the rest again on the way back (Chen et al. 2016, "Training
        Deep Nets with Sublinear Memory Cost"): less memory, a third more work.
    pipelines : how many there are; their number times that of the stages is the number of workers.
    """

    family = "model-parallel"
    sends = "nothing"
    replicas = "parts"

    def __init__(
        self,
        *,
        micro_batches: int = 4,
        schedule: Literal["1f1b", "gpipe"] = "1f1b",
        balance: Literal["parameters", "time"] = "parameters",
        cuts: Sequence[int] | None = None,
        recompute: bool = False,
        pipelines: int = 1,
    ) -> None:
        for key, value in (("micro_batches", micro_batches), ("pipelines", pipelines)):
            if value < 1:
                raise ConfigurationError(f"{key} must be at least 1, not {value}")
        if schedule not in SCHEDULES or balance not in ("parameters", "time"):
            raise ConfigurationError(
                f"schedule is {' or '.join(SCHEDULES)}, balance 'parameters' or 'time'; not {schedule!r} and {balance!r}"
            )
        self._micro_batches, self._schedule, self._balance = micro_batches, SCHEDULES[schedule], balance
        self._cuts, self._recompute, self._pipelines = cuts, recompute, pipelines
        self._bubble = Bubble(2 * micro_batches)

    def rounds(self, cluster: Cluster) -> Iterator[Round]:
        """Yield one step of all stages a round."""
        workers = cluster.workers
        self._bubble.forget()  # of steps before a loss or a look
        stages = len(workers) // self._pipelines
        tasks = list(in_turn(self._schedule, stages, self._micro_batches))
        pipelines = [workers[first : first + stages] for first in range(0, len(workers), stages)]
        groups = list(map(cluster.group, self.holders(cluster))) if self._pipelines > 1 else None
        while True:
            for pipeline in pipelines:
                self._flow(pipeline, tasks)
            yield Round(
                [
                    worker.update() if groups is None else worker.update(groups[place % stages])
                    for place, worker in enumerate(workers)
                ]
            )

    def _flow(self, pipeline: Sequence[Any], tasks: Sequence[Any]) -> None:
        """Let the micro-batches of a step go through a pipeline and back."""
        held: dict[tuple[int, str, int], Any] = {}
        for stage, phase, micro in tasks:
            before = held.pop((stage - 1 if phase == "forward" else stage + 1, phase, micro), None)
            call = getattr(pipeline[stage], phase)
            held[stage, phase, micro] = call(micro) if before is None else call(micro, before)

    def parts(self, workers: int) -> Parts:
        """Return how the model is cut."""
        return Parts(
            stages=workers // self._pipelines,
            micro_batches=self._micro_batches,
            balance=self._balance,
            cuts=None if self._cuts is None else tuple(self._cuts),
            recompute=self._recompute,
        )

    def holders(self, cluster: Cluster) -> Sequence[Sequence[Any]]:
        """Return who has each stage, in all pipelines."""
        stages = len(cluster.workers) // self._pipelines
        return [cluster.workers[stage::stages] for stage in range(stages)]

    def traced(self, rows: Sequence[TraceRow], cluster: Cluster) -> None:
        """Learn from the calls that ended how long stages waited."""
        self._bubble.add(rows, [worker.name for worker in cluster.workers])

    def state(self) -> Mapping[str, float]:
        """Return how long stages have waited."""
        return self._bubble.state()

    def restore(self, state: Mapping[str, float]) -> None:
        """Go on counting from there."""
        self._bubble.restore(state)

    def figures(self) -> Mapping[str, Any]:
        """Return the share of their time that the stages waited for each other."""
        share = self._bubble.share
        return {} if share is None else {"bubble": share}

    def world_size(self, workers: int) -> int:
        """Return ``workers``, which must be a multiple of the pipelines."""
        if workers % self._pipelines:
            raise ConfigurationError(f"{workers} workers cannot be parted among {self._pipelines} pipelines evenly")
        return workers

    def batches_per_round(self, workers: int) -> int:  # noqa: ARG002 - one a pipeline
        """Return one batch for each pipeline."""
        return self._pipelines

"""Pipelines (Huang et al. 2019, "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from chimera.core.errors import ConfigurationError
from chimera.strategies.model_parallel import ModelParallel, Shape, at_least_1, divide_evenly
from chimera.strategies.model_partition import ModelPartition
from chimera.strategies.strategy import STRATEGIES


@STRATEGIES.register("pipeline-parallel")
class PipelineParallel(ModelParallel):
    """Workers hold successive layers of a network, as in GPipe (Huang et al. 2019) and 1F1B (Narayanan et al. 2019).

    A stage sends its activations to the next stage, and receives their gradient. Each stage steps its own part by the mean
    gradient over the batch; ``batch_size`` is per pipeline. The weights equal those of training the whole network on one
    worker. With S stages and M micro-batches, stages wait for a share (S - 1) / (M + S - 1) of the time.

    With several ``pipelines``, each reads its own data. The workers that hold the same stage average their gradients before
    they step.

    Parameters
    ----------
    micro_batches : number of pieces of a batch; default 4. Batch normalisation uses each piece by itself, as in GPipe.
    schedule : ``1f1b`` (default), which holds fewer activations, or ``gpipe``.
    balance : what is spread evenly over the stages: ``parameters`` (default), or the ``time`` of the layers, measured before
        the run.
    cuts : numbers of the layers, from 1, before which the network is cut. Default: chosen by ``balance``.
    recompute : whether a stage keeps only its inputs and computes the rest again in the backward pass (Chen et al. 2016,
        "Training Deep Nets with Sublinear Memory Cost"): less memory, a third more work; default False.
    pipelines : number of pipelines; default 1. Pipelines times stages is the number of workers.
    """

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
        super().__init__(micro_batches=micro_batches, schedule=schedule)
        at_least_1(pipelines=pipelines)
        if balance not in ("parameters", "time"):
            raise ConfigurationError(f"balance is 'parameters' or 'time', not {balance!r}")
        self._balance, self._cuts, self._recompute, self._pipelines = balance, cuts, recompute, pipelines

    def shape(self, workers: int) -> Shape:
        """Return the numbers of pipelines and of stages in each."""
        return Shape(self._pipelines, divide_evenly(workers, self._pipelines, "pipelines"), 1)

    def parts(self, workers: int) -> ModelPartition:
        """Return how the model is cut."""
        return ModelPartition(
            stages=self.shape(workers).stages,
            micro_batches=self._micro_batches,
            balance=self._balance,
            cuts=None if self._cuts is None else tuple(self._cuts),
            recompute=self._recompute,
        )

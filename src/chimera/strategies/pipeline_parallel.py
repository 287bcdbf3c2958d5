"""Pipelines (Huang et al. 2019, "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from chimera.core.errors import ConfigurationError
from chimera.strategies.cut_over_workers import CutOverWorkers, Shape, at_least_1, evenly
from chimera.strategies.parts import Parts
from chimera.strategies.strategy import STRATEGIES


@STRATEGIES.register("pipeline-parallel")
class PipelineParallel(CutOverWorkers):
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
        """Return the pipelines, and how many stages each has."""
        return Shape(self._pipelines, evenly(workers, self._pipelines, "pipelines"), 1)

    def parts(self, workers: int) -> Parts:
        """Return how the model is cut."""
        return Parts(
            stages=self.shape(workers).stages,
            micro_batches=self._micro_batches,
            balance=self._balance,
            cuts=None if self._cuts is None else tuple(self._cuts),
            recompute=self._recompute,
        )

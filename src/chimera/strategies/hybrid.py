"""Data, pipeline and tensor parallelism combined (Narayanan et al. 2021, "Efficient Large-Scale Language Model Training")."""

from __future__ import annotations

from typing import Literal

from chimera.strategies.model_parallel import ModelParallel, Shape, at_least_1, divide_evenly
from chimera.strategies.model_partition import ModelPartition
from chimera.strategies.strategy import STRATEGIES


@STRATEGIES.register("hybrid")
class Hybrid(ModelParallel):
    """Pipelines whose stages are cut into slices, with replicas that read different data (Narayanan et al. 2021).

    ``stages`` times ``slices`` workers hold the model together. The model is cut by layers as in `pipeline-parallel`, and
    layers are cut as in `tensor-parallel`. The number of replicas is the number of workers divided by ``stages`` times
    ``slices``.

    Parameters
    ----------
    stages : number of stages of a pipeline; default 1.
    slices : number of slices of each stage; default 1.
    micro_batches : number of pieces of a batch; default 4.
    schedule : ``1f1b`` (default), which holds fewer activations, or ``gpipe``.
    recompute : whether a stage keeps only its inputs and computes the rest again in the backward pass; default False.
    """

    def __init__(
        self,
        *,
        stages: int = 1,
        slices: int = 1,
        micro_batches: int = 4,
        schedule: Literal["1f1b", "gpipe"] = "1f1b",
        recompute: bool = False,
    ) -> None:
        super().__init__(micro_batches=micro_batches, schedule=schedule)
        at_least_1(stages=stages, slices=slices)
        self._stages, self._slices, self._recompute = stages, slices, recompute

    def shape(self, workers: int) -> Shape:
        """Return the numbers of replicas, stages and slices."""
        parts = self._stages * self._slices
        return Shape(
            divide_evenly(workers, parts, f"parts ({self._stages} stages of {self._slices} slices)"),
            self._stages,
            self._slices,
        )

    def parts(self, workers: int) -> ModelPartition:  # noqa: ARG002 - whatever their number
        """Return how the model is cut."""
        return ModelPartition(
            stages=self._stages, slices=self._slices, micro_batches=self._micro_batches, recompute=self._recompute
        )

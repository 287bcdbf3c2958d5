"""Three ways to be parallel at once (Narayanan et al. 2021, "Efficient Large-Scale Language Model Training")."""

from __future__ import annotations

from typing import Literal

from chimera.strategies.cut_over_workers import CutOverWorkers, Shape, at_least_1, evenly
from chimera.strategies.parts import Parts
from chimera.strategies.strategy import STRATEGIES


@STRATEGIES.register("hybrid")
class Hybrid(CutOverWorkers):
    """Pipelines whose stages are cut into slices, with replicas that read other data (Narayanan et al. 2021).

    ``stages`` times ``slices`` workers hold the model together: as `pipeline-parallel` cuts it by layers, and as
    `tensor-parallel` cuts the layers. There are as many replicas as the number of workers has room for.

    Parameters
    ----------
    stages : of a pipeline.
    slices : of each stage.
    micro_batches : into how many pieces a batch is cut.
    schedule : ``1f1b``, which holds fewer activations, or ``gpipe``.
    recompute : keep only the inputs of each stage and compute the rest again on the way back.
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
        """Return how often the model is there."""
        parts = self._stages * self._slices
        return Shape(
            evenly(workers, parts, f"parts ({self._stages} stages of {self._slices} slices)"),
            self._stages,
            self._slices,
        )

    def parts(self, workers: int) -> Parts:  # noqa: ARG002 - whatever their number
        """Return how the model is cut."""
        return Parts(
            stages=self._stages, slices=self._slices, micro_batches=self._micro_batches, recompute=self._recompute
        )

"""Tensor parallelism (Shoeybi et al. 2019, "Megatron-LM: Training Multi-Billion Parameter Language Models")."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chimera.strategies.cut_over_workers import CutOverWorkers, Shape, at_least_1, evenly
from chimera.strategies.parts import Parts
from chimera.strategies.strategy import STRATEGIES


@STRATEGIES.register("tensor-parallel")
class TensorParallel(CutOverWorkers):
    """Large layers are cut over the workers, by columns and rows, heads and words (Shoeybi et al. 2019).

    All workers of a group compute the same batch, each its slice of every linear, embedding and attention layer that can be
    cut, and add up what they have in the middle of the passes: two linear layers with nothing but elementwise ones between
    them take one all-reduce forward and one backward. The other layers each of them has. The weights are those of the whole
    network trained on one worker.

    Parameters
    ----------
    groups : how many there are. With several the workers are parted among them, each reads its own data, and the workers that
        hold the same slice take the mean of their gradients before they step.
    """

    def __init__(self, *, groups: int = 1) -> None:
        super().__init__()
        at_least_1(groups=groups)
        self._groups = groups

    def shape(self, workers: int) -> Shape:
        """Return the groups, and how many slices each has."""
        return Shape(self._groups, 1, evenly(workers, self._groups, "groups"))

    def parts(self, workers: int) -> Parts:
        """Return how the model is cut."""
        return Parts(slices=self.shape(workers).slices)

    def figures(self) -> Mapping[str, Any]:
        """Return nothing: slices have no bubble."""
        return {}

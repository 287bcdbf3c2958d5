"""Tensor parallelism (Shoeybi et al. 2019, "Megatron-LM: Training Multi-Billion Parameter Language Models")."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chimera.strategies.model_parallel import ModelParallel, Shape, at_least_1, divide_evenly
from chimera.strategies.model_partition import ModelPartition
from chimera.strategies.strategy import STRATEGIES


@STRATEGIES.register("tensor-parallel")
class TensorParallel(ModelParallel):
    """Workers hold slices of large layers, cut by columns and rows, heads and words (Shoeybi et al. 2019).

    All workers of a group compute the same batch. Each holds a slice of every linear, embedding and attention layer that can be
    cut, and a copy of all other layers. Workers sum their partial results within a pass. Two linear layers with only
    elementwise layers between them need one all-reduce forward and one backward. The weights equal those of training the whole
    network on one worker.

    Parameters
    ----------
    groups : number of groups; default 1. With several, each group reads its own data, and the workers that hold the same slice
        average their gradients before they step.
    """

    def __init__(self, *, groups: int = 1) -> None:
        super().__init__()
        at_least_1(groups=groups)
        self._groups = groups

    def shape(self, workers: int) -> Shape:
        """Return the numbers of groups and of slices in each."""
        return Shape(self._groups, 1, divide_evenly(workers, self._groups, "groups"))

    def parts(self, workers: int) -> ModelPartition:
        """Return how the model is cut."""
        return ModelPartition(slices=self.shape(workers).slices)

    def figures(self) -> Mapping[str, Any]:
        """Return nothing: slices have no bubble."""
        return {}

"""Approximate coding (Charles et al. 2017, "Approximate Gradient Coding via Sparse Random Graphs")."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chimera.core.errors import ConfigurationError
from chimera.strategies.coded_step import CodedStep
from chimera.strategies.gradient_coding import GradientCoding
from chimera.strategies.strategy import STRATEGIES


@STRATEGIES.register("approximate-coding")
class ApproximateCoding(GradientCoding):
    """As `gradient-coding`, for more stragglers than copies: from those who answer, servers have nearly the mean of all.

    Each block is computed by ``copies`` workers, drawn at random, and each worker sends the sum of its gradients. What has
    come is put together by least squares, so that each block counts as nearly once as can be (Charles et al. 2017).

    Parameters
    ----------
    copies : how many workers compute each block.
    stragglers : so many workers a step goes on without, though not without all.
    timeout_s : how long a step waits for the others before it makes the best of those who have answered; without it, as long
        as it takes.
    shards : over how many servers the parameters are spread.
    """

    code = "regular"

    def __init__(
        self, *, copies: int = 2, stragglers: int = 1, timeout_s: float | None = None, shards: int = 1
    ) -> None:
        for key, value, least in (("copies", copies, 1), ("stragglers", stragglers, 0)):
            if value < least:
                raise ConfigurationError(f"{key} must be at least {least}, not {value}")
        super().__init__(stragglers=copies - 1, timeout_s=timeout_s, shards=shards)
        self._stragglers, self._off = stragglers, 0.0

    def figures(self) -> Mapping[str, Any]:
        """Return how far off, at most, a step counted the blocks; 0 if every gradient was exact."""
        return {"coding_error": self._off}

    def state(self) -> Mapping[str, Any]:
        """Return how far off it was."""
        return {"off": self._off}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` returned."""
        self._off = state["off"]

    def _collect(self, step: CodedStep, workers: int) -> None:
        """Take what has come, and take note of how far off it is."""
        step.ask(max(workers - self._stragglers, 1), exact=False)
        self._off = max(self._off, step.off)

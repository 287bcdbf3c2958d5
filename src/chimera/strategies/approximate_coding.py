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
    """`gradient-coding` for more stragglers than copies: servers compute an approximate mean from the answers that arrive.

    Each block is computed by ``copies`` workers, drawn at random, and each worker sends the sum of its blocks' gradients.
    Servers choose weights for the answers by least squares, so that each block counts as nearly once as possible (Charles et
    al. 2017).

    Parameters
    ----------
    copies : number of workers that compute each block; default 2.
    stragglers : number of workers that a step does not wait for, but never all; default 1.
    timeout_s : seconds that a step waits for the other workers; after that it uses the answers that have arrived. Default: no
        limit.
    shards : number of servers over which the parameters are spread; default 1.
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
        """Return the largest error of the blocks' weights in any step; 0 if every gradient was exact."""
        return {"coding_error": self._off}

    def state(self) -> Mapping[str, Any]:
        """Return the largest error so far."""
        return {"off": self._off}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` returned."""
        self._off = state["off"]

    def _collect(self, step: CodedStep, workers: int) -> None:
        """Collect answers, and record the error of their combination."""
        step.ask(max(workers - self._stragglers, 1), exact=False)
        self._off = max(self._off, step.off)

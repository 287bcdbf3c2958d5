"""Fractional repetition (Tandon et al. 2017, "Gradient Coding: Avoiding Stragglers in Distributed Learning", section 3)."""

from __future__ import annotations

from chimera.core.errors import ConfigurationError
from chimera.strategies.gradient_coding import GradientCoding
from chimera.strategies.strategy import STRATEGIES


@STRATEGIES.register("replicated")
class Replicated(GradientCoding):
    """`gradient-coding` by groups of workers that compute the same blocks: the first copy of each block counts.

    Any ``copies`` - 1 workers may be stragglers, and more as long as one worker of each group answers (Tandon et al. 2017,
    fractional repetition).

    Parameters
    ----------
    copies : number of workers that compute each block; default 2. Some groups have more copies if this number does not divide
        the number of workers.
    timeout_s, shards : see `gradient-coding`.
    """

    code = "repetition"

    def __init__(self, *, copies: int = 2, timeout_s: float | None = None, shards: int = 1) -> None:
        if copies < 1:
            raise ConfigurationError(f"copies must be at least 1, not {copies}")
        super().__init__(stragglers=copies - 1, timeout_s=timeout_s, shards=shards)

"""Gradient coding (Tandon et al. 2017, "Gradient Coding: Avoiding Stragglers in Distributed Learning")."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import ClassVar

from chimera.core.errors import ConfigurationError
from chimera.strategies.coded_step import CodedStep
from chimera.strategies.codes import Code, blocks_of, code_of, fewest
from chimera.strategies.strategy import STRATEGIES, Cluster, Round, Strategy


@STRATEGIES.register("gradient-coding")
class GradientCoding(Strategy):
    """As `parameter-server`, with each gradient computed by several workers, so that the slowest need not be waited for.

    The batches of a step are blocks, of which each worker computes one more than there may be stragglers, and sends one
    combination of their gradients: from any that are enough servers have the exact mean of all (Tandon et al. 2017).

    Parameters
    ----------
    stragglers : so many workers a step may be missing, though not the last one; each computes that many blocks besides its
        own.
    timeout_s : how long a step waits for enough workers before it asks others for the blocks that are missing, and how long
        for each of these; then the run fails. Without it, as long as it takes.
    shards : over how many servers the parameters are spread.

    Raises
    ------
    TooFewWorkersError : of `rounds`: nobody who holds a block that is missing has answered in time.
    """

    family = "redundant work"
    counts = True
    by_rows = False  # a worker needs the rows of others' batches too
    code: ClassVar[str] = "cyclic"

    def __init__(self, *, stragglers: int = 1, timeout_s: float | None = None, shards: int = 1) -> None:
        for key, value, least in (("stragglers", stragglers, 0), ("shards", shards, 1)):
            if value < least:
                raise ConfigurationError(f"{key} must be at least {least}, not {value}")
        if timeout_s is not None and not timeout_s > 0:
            raise ConfigurationError(f"timeout_s must be above 0, not {timeout_s}")
        self._others, self._timeout_s, self._shards = stragglers, timeout_s, shards

    def rounds(self, cluster: Cluster) -> Iterator[Round]:
        """Yield one step of the servers a round."""
        servers = cluster.servers(self._shards)
        weights = [server.weights() for server in servers]
        for number in itertools.count(cluster.round):
            step = CodedStep(cluster, self._code(len(cluster.dealt)), weights, number, self._timeout_s)
            self._collect(step, len(cluster.dealt))
            *pieces, told = zip(*step.answers.values(), strict=True)
            updates = [
                server.combine(*piece, shares=step.shares, step=number, returns=2)
                for server, piece in zip(servers, pieces, strict=True)
            ]
            weights, done = [list(refs) for refs in zip(*updates, strict=True)]
            yield Round([*done, *told], batches=len(cluster.dealt))

    def holds(self, workers: int) -> Sequence[Sequence[int]]:
        """Return the blocks of each worker, its own first."""
        code = self._code(workers)
        return [blocks_of(code, place) for place in range(workers)]

    def _collect(self, step: CodedStep, workers: int) -> None:
        """Ask until every block counts once."""
        step.ask(fewest(self.code, workers, self._spare(workers)), exact=True)
        step.ask_again()

    def _code(self, workers: int) -> Code:
        return code_of(self.code, workers, self._spare(workers))

    def _spare(self, workers: int) -> int:
        return min(self._others, workers - 1)

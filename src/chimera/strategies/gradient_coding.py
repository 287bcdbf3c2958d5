"""Gradient coding (Tandon et al. 2017, "Gradient Coding: Avoiding Stragglers in Distributed Learning")."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import ClassVar

from chimera.core.errors import ConfigurationError
from chimera.strategies.cluster import Cluster
from chimera.strategies.coded_step import CodedStep
from chimera.strategies.codes import Code, blocks_of, code_of, fewest
from chimera.strategies.strategy import STRATEGIES, Round, Strategy


@STRATEGIES.register("gradient-coding")
class GradientCoding(Strategy):
    """`parameter-server` in which several workers compute each gradient, so that a step need not wait for the slowest ones.

    The batches of a step are blocks. With s tolerated stragglers, each worker computes s + 1 blocks and sends one linear
    combination of their gradients. From any n - s of these, servers compute the exact mean of all blocks (Tandon et al. 2017).

    Parameters
    ----------
    stragglers : number of workers s that a step tolerates, at most all but one; default 1. Each worker computes that many
        blocks besides its own.
    timeout_s : seconds that a step waits for enough workers. After that it asks other workers for the missing blocks, and waits
        as long for each of these; then the run fails. Default: no limit.
    shards : number of servers over which the parameters are spread; default 1.

    Raises
    ------
    TooFewWorkersError : raised by `rounds` if no worker that holds a missing block has answered in time.
    """

    family = "redundant work"
    counts = True
    by_rows = False  # a worker also needs the rows of other workers' batches
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
            step = CodedStep(cluster, self._code(len(cluster.sharded_workers)), weights, number, self._timeout_s)
            self._collect(step, len(cluster.sharded_workers))
            *pieces, told = zip(*step.answers.values(), strict=True)
            updates = [
                server.combine(*piece, shares=step.shares, step=number, returns=2)
                for server, piece in zip(servers, pieces, strict=True)
            ]
            weights, done = [list(refs) for refs in zip(*updates, strict=True)]
            yield Round([*done, *told], batches=len(cluster.sharded_workers))

    def holds(self, workers: int) -> Sequence[Sequence[int]]:
        """Return the blocks of each worker, its own first."""
        code = self._code(workers)
        return [blocks_of(code, place) for place in range(workers)]

    def _collect(self, step: CodedStep, workers: int) -> None:
        """Collect answers until every block counts once."""
        step.ask(fewest(self.code, workers, self._spare(workers)), exact=True)
        step.ask_again()

    def _code(self, workers: int) -> Code:
        return code_of(self.code, workers, self._spare(workers))

    def _spare(self, workers: int) -> int:
        return min(self._others, workers - 1)

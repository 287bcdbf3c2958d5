"""Gradient coding (Tandon et al. 2017, "Gradient Coding: Avoiding Stragglers in Distributed Learning")."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError, TooFewWorkersError
from chimera.strategies.codes import Code, blocks_of, code_of, decoding, first_like, most_missed
from chimera.strategies.strategy import STRATEGIES, Cluster, Round, Strategy

Answers = dict[int, tuple[NDArray[np.float64], Sequence[Any]]]
"""By number, rows of the code, and from n on blocks by themselves: what of each block is in it, and the refs that hold it."""


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
        for step in itertools.count(cluster.round):
            answers = self._collected(cluster, weights, step)
            decoded, _ = decoding([row for row, _ in answers.values()])
            shares = {number: float(share) / len(cluster.dealt) for number, share in zip(answers, decoded, strict=True)}
            *pieces, told = zip(*(refs for _, refs in answers.values()), strict=True)
            updates = [
                server.combine(*piece, shares=shares, step=step, returns=2)
                for server, piece in zip(servers, pieces, strict=True)
            ]
            weights, done = [list(refs) for refs in zip(*updates, strict=True)]
            yield Round([*done, *told], batches=len(cluster.dealt))

    def holds(self, workers: int) -> Sequence[Sequence[int]]:
        """Return the blocks of each worker, its own first."""
        code = self._code(workers)
        return [blocks_of(code, place) for place in range(workers)]

    def _collected(self, cluster: Cluster, weights: Sequence[Any], step: int) -> Answers:
        """Return what came of a step, with the blocks that were asked for again, so that it has every block once."""
        answers = self._first(cluster, weights, step)
        while decoding([row for row, _ in answers.values()])[1]:
            code = self._code(len(cluster.dealt))
            block = most_missed([row for row, _ in answers.values()])
            answers[len(code) + block] = np.eye(len(code))[block], self._again(cluster, weights, step, block)
        return answers

    def _first(self, cluster: Cluster, weights: Sequence[Any], step: int) -> Answers:
        """Return what the first workers answered, as soon as all blocks can be had from it; of equal answers one."""
        code, place = self._code(len(cluster.dealt)), list(cluster.dealt).index

        def ask(worker: Any) -> Any:
            at = place(worker.name)
            return self._ask(cluster, worker, weights, step, row=code[at], number=first_like(code, at))

        came = cluster.until(
            lambda names: self._enough(code, [place(name) for name in names]),
            cluster.workers,
            ask,
            self._least(code),
            self._timeout_s,
        )
        answers: Answers = {}
        for name, refs in came.items():
            answers.setdefault(first_like(code, place(name)), (code[place(name)], refs))
        return answers

    def _again(self, cluster: Cluster, weights: Sequence[Any], step: int, block: int) -> Sequence[Any]:
        """Return a block by itself, from whoever else has it and answers first."""
        code = self._code(len(cluster.dealt))
        holders = [worker for worker in cluster.workers if code[list(cluster.dealt).index(worker.name), block]]
        missing = f"step {step}: block {block} is missing"
        if not holders:
            raise TooFewWorkersError(f"{missing}, and all are gone who held it: let stragglers be more, or deal anew")
        row, number = np.eye(len(code))[block], len(code) + block
        try:
            came = cluster.soonest(
                holders,
                lambda worker: self._ask(cluster, worker, weights, step, row=row, number=number, again=True),
                1,
                self._timeout_s,
            )
        except TooFewWorkersError as error:
            raise TooFewWorkersError(f"{missing}, and of those who hold it {error}") from None
        return next(iter(came.values()))

    def _ask(
        self,
        cluster: Cluster,
        worker: Any,
        weights: Sequence[Any],
        step: int,
        *,
        row: Any,
        number: int,
        again: bool = False,
    ) -> list[Any]:
        code = self._code(len(cluster.dealt))
        held = blocks_of(code, list(cluster.dealt).index(worker.name))
        shares = [(part, float(row[block])) for part, block in enumerate(held) if row[block]]
        given = cluster.addressed(worker, weights)
        returns = self._shards + 1
        return worker.coded(*given, shares=shares, block=number, step=step, again=again, returns=returns)  # type: ignore[no-any-return]

    def _least(self, code: Code) -> int:
        """Return from how many workers on there may be enough."""
        return int(np.linalg.matrix_rank(code))

    def _enough(self, code: Code, places: Sequence[int]) -> bool:
        """Return whether the messages of these have every block."""
        return decoding(code[places])[1] == 0

    def _code(self, workers: int) -> Code:
        return code_of(self.code, workers, min(self._others, workers - 1))

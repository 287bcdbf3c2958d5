"""One step in which several workers compute each block: calls of workers until the answers suffice."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import TooFewWorkersError
from chimera.strategies.cluster import Cluster
from chimera.strategies.codes import Code, blocks_of, decoding, first_like, max_missed


class CodedStep:
    """The answers of one step.

    Each answer has a number. For a message it is the first place of the workers that send the same message. For a block
    computed separately it is n plus the block.

    Parameters
    ----------
    cluster : the workers.
    code : the row of blocks of each worker, by its place.
    weights : refs of the weights of this step, shard by shard.
    step : number of the step.
    timeout_s : seconds to wait for the answers to each request; None for no limit.

    Attributes
    ----------
    answers : refs of the answers by number: a message for each shard, and the rejections.
    """

    def __init__(
        self, cluster: Cluster, code: Code, weights: Sequence[Any], step: int, timeout_s: float | None
    ) -> None:
        self._cluster, self._code, self._weights = cluster, code, weights
        self._step, self._timeout_s = step, timeout_s
        self._places = {name: place for place, name in enumerate(cluster.sharded_workers)}
        self._rows: dict[int, NDArray[np.float64]] = {}
        self._decoded: tuple[NDArray[np.float64], float] | None = None  # result of `decoding` for the first rows
        self.answers: dict[int, Sequence[Any]] = {}

    @property
    def shares(self) -> dict[int, float]:
        """Factors of the answers, by number. The weighted sum of the answers is the mean of all blocks, or nearest to it."""
        found, _ = self._decoding
        return {number: float(share) / len(self._code) for number, share in zip(self._rows, found, strict=True)}

    @property
    def off(self) -> float:
        """The error of the sum with these factors, see `decoding`."""
        return self._decoding[1]

    @property
    def _decoding(self) -> tuple[NDArray[np.float64], float]:
        if self._decoded is None or len(self._decoded[0]) < len(self._rows):
            self._decoded = decoding([*self._rows.values()])
        return self._decoded

    def ask(self, least: int, *, exact: bool) -> None:
        """Ask all free workers; wait for at least ``least`` answers, and, if ``exact``, until they give all blocks."""

        def enough(names: Collection[str]) -> bool:
            return not (exact and decoding(self._code[[self._places[name] for name in names]])[1])

        def ask(worker: Any) -> list[Any]:
            place = self._places[worker.name]
            return self._coded(worker, self._code[place], first_like(self._code, place))

        received = self._cluster.until(enough, self._cluster.workers, ask, least, self._timeout_s)
        for place, refs in ((self._places[name], refs) for name, refs in received.items()):
            number = first_like(self._code, place)
            self._rows.setdefault(number, self._code[place])
            self.answers.setdefault(number, refs)

    def ask_again(self) -> None:
        """Ask other holders for the missing blocks, one by one, until all can be decoded.

        Raises
        ------
        TooFewWorkersError : no worker that holds a block has answered in time.
        """
        while self.off:
            block = max_missed([*self._rows.values()])
            row, number = np.eye(len(self._code))[block], len(self._code) + block
            holders = [worker for worker in self._cluster.workers if self._code[self._places[worker.name], block]]
            missing = f"step {self._step}: block {block} is missing, and"
            if not holders:
                raise TooFewWorkersError(
                    f"{missing} all its holders are lost: let more workers hold each block, or redistribute the data"
                )
            try:
                received = self._cluster.soonest(
                    holders,
                    lambda worker: self._coded(worker, row, number, again=True),  # noqa: B023
                    1,
                    self._timeout_s,
                )
            except TooFewWorkersError as error:
                raise TooFewWorkersError(f"{missing} of its holders, {error}") from None
            self._rows[number], self.answers[number] = row, next(iter(received.values()))

    def _coded(self, worker: Any, row: NDArray[np.float64], number: int, *, again: bool = False) -> list[Any]:
        held = blocks_of(self._code, self._places[worker.name])
        shares = [(part, float(row[block])) for part, block in enumerate(held) if row[block]]
        given, returns = self._cluster.addressed(worker, self._weights), len(self._weights) + 1
        return worker.coded(*given, shares=shares, block=number, step=self._step, again=again, returns=returns)  # type: ignore[no-any-return]

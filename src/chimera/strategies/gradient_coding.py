"""Gradient coding (Tandon et al. 2017, "Gradient Coding: Avoiding Stragglers in Distributed Learning")."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from chimera.core.errors import ConfigurationError
from chimera.strategies.codes import CODES, Code, code_of, decoding
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
    code : ``cyclic``, for any number of workers; or ``repetition``, by which groups compute the same and the first counts.
    timeout_s : how long a step waits for enough workers before it makes the best of those that have answered, which is not
        exact; without it, as long as it takes.
    shards : over how many servers the parameters are spread.
    """

    family = "redundant work"
    counts = True

    def __init__(
        self,
        *,
        stragglers: int = 1,
        code: Literal["cyclic", "repetition"] = "cyclic",
        timeout_s: float | None = None,
        shards: int = 1,
    ) -> None:
        for key, value, least in (("stragglers", stragglers, 0), ("shards", shards, 1)):
            if value < least:
                raise ConfigurationError(f"{key} must be at least {least}, not {value}")
        if code not in CODES:
            raise ConfigurationError(f"code is {' or '.join(CODES)}, not {code!r}")
        if timeout_s is not None and not timeout_s > 0:
            raise ConfigurationError(f"timeout_s must be above 0, not {timeout_s}")
        self._stragglers, self._name, self._timeout_s, self._shards = stragglers, code, timeout_s, shards
        self._off = 0.0

    def rounds(self, cluster: Cluster) -> Iterator[Round]:
        """Yield one step of the servers a round."""
        servers = cluster.servers(self._shards)
        weights = [server.weights() for server in servers]
        workers = list(cluster.workers)
        code, spare = self._code(len(workers)), self._spare(len(workers))
        places = {worker.name: place for place, worker in enumerate(workers)}
        for step in itertools.count(cluster.round):

            def ask(worker: Any, step: int = step, weights: Sequence[Any] = weights) -> list[Any]:
                row = code[places[worker.name]]
                shares = [float(row[block]) for block in self._blocks(code, places[worker.name])]
                given = cluster.addressed(worker, weights)
                return worker.coded(*given, shares=shares, step=step, returns=self._shards + 1)  # type: ignore[no-any-return]

            answers = cluster.soonest(workers, ask, len(workers) - spare, self._timeout_s)
            shares, off = decoding(code, [places[name] for name in answers])
            self._off = max(self._off, off)
            rule = {"name": "combination", "shares": [float(share) / len(workers) for share in shares]}
            *pieces, told = zip(*answers.values(), strict=True)
            updates = [
                server.update(*piece, aggregation=rule, returns=2)
                for server, piece in zip(servers, pieces, strict=True)
            ]
            weights, done = [list(refs) for refs in zip(*updates, strict=True)]
            yield Round([*done, *told], batches=len(workers))

    def holds(self, workers: int) -> Sequence[Sequence[int]]:
        """Return the blocks of each worker, its own first."""
        code = self._code(workers)
        return [self._blocks(code, place) for place in range(workers)]

    def world_size(self, workers: int) -> int:
        """Return ``workers``, which the code must be able to part."""
        CODES[self._name](workers, self._spare(workers))
        return workers

    def figures(self) -> Mapping[str, Any]:
        """Return how far off, at most, a step counted the blocks; 0 if every gradient was exact."""
        return {"coding_error": self._off}

    def state(self) -> Mapping[str, Any]:
        """Return how far off it was."""
        return {"off": self._off}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` returned."""
        self._off = state["off"]

    def _spare(self, workers: int) -> int:
        return min(self._stragglers, workers - 1)

    def _code(self, workers: int) -> Code:
        """Return the code of so many workers; where some were lost, there may not be enough for groups any more."""
        spare = self._spare(workers)
        return code_of("cyclic" if workers % (spare + 1) else self._name, workers, spare)

    @staticmethod
    def _blocks(code: Code, place: int) -> list[int]:
        others = [int(block) for block in np.flatnonzero(code[place]) if block != place]
        return [place, *others]

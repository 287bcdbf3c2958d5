"""Assignment of training data to workers, also when workers join or are lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from chimera.data.order import MultiBlockOrder
from chimera.data.provider import DataProvider


class Sharding:
    """The training data, divided among the present workers.

    Parameters
    ----------
    provider : divides the data.
    world_size : number of workers at the start.
    samples_per_round : returns the samples that a given number of workers process in a round.
    steps_per_round : steps of a worker in a round.
    readers : number of consecutive workers that read the same data.
    holds : returns the blocks that each of a given number of workers holds, see `Strategy.holds`; None if no worker holds the
        blocks of another.

    Attributes
    ----------
    provider : source of the orders.
    orders : the order in which each worker reads its rows; one for each worker of the current assignment.
    """

    def __init__(
        self,
        provider: DataProvider,
        world_size: int,
        samples_per_round: Callable[[int], int],
        steps_per_round: int = 1,
        readers: int = 1,
        holds: Callable[[int], Sequence[Sequence[int]] | None] = lambda _: None,
    ) -> None:
        self.provider, self._samples_per_round = provider, samples_per_round
        self._steps_per_round, self._readers, self._holds = steps_per_round, readers, holds
        self._world_size, self._round, self._begin = world_size, 0, 0
        self.orders = self._made()

    @property
    def since(self) -> int:
        """The first step that the current orders apply to."""
        return self.step_of(self._round)

    def step_of(self, round_: int) -> int:
        """Return the index of a worker's first step in a round."""
        return round_ * self._steps_per_round

    def reshard(self, world_size: int, round_: int) -> None:
        """Divide the data among ``world_size`` workers from a round on. Rows already read in this epoch are not repeated."""
        self._begin += (round_ - self._round) * self._samples_per_round(self._world_size)
        self._world_size, self._round = world_size, round_
        self.orders = self._made()

    def restart(self) -> None:
        """Start again at round 0 with the current number of workers."""
        self._round = self._begin = 0
        self.orders = self._made()

    def state(self) -> dict[str, int]:
        """Return the state from which `restore` computes the same assignment."""
        return {"world_size": self._world_size, "since": self._round, "begin": self._begin}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the assignment that `state` described."""
        self._world_size, self._round, self._begin = state["world_size"], state["since"], state["begin"]
        self.orders = self._made()

    def replace_lost(self) -> list[str]:
        """Replace dead actors that prepare data; return their names. The orders then refer to the new actors."""
        if names := self.provider.replace_lost():
            self.orders = self._made()
        return names

    def _made(self) -> list[Any]:
        held = self._holds(self._world_size)
        readers = self._world_size // self._readers if held is None else 1 + max(map(max, held))
        streams = self.provider.orders(readers, since=self.since, begin=self._begin)
        if held is not None:
            return [MultiBlockOrder(tuple(streams[block] for block in blocks)) for blocks in held]
        return [order for order in streams for _ in range(self._readers)]

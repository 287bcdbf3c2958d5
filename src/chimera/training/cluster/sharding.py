"""Who reads which data, also when workers come and go."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from chimera.data.order import HeldOrder
from chimera.data.supply import Supply


class Dealing:
    """The training data as it is parted among those who are there.

    Parameters
    ----------
    supply : parts it.
    world_size : how many workers there are at first.
    samples_per_round : how many samples so many workers process in a round.
    steps_per_round : by how many steps a worker goes on in a round.
    readers : how many workers, one after another, read the same data.
    holds : which blocks each of so many workers holds, see `Strategy.holds`; None if nobody holds another's.

    Attributes
    ----------
    supply : whom the orders come from.
    orders : who reads what, by place among those who are there.
    """

    def __init__(
        self,
        supply: Supply,
        world_size: int,
        samples_per_round: Callable[[int], int],
        steps_per_round: int = 1,
        readers: int = 1,
        holds: Callable[[int], Sequence[Sequence[int]] | None] = lambda _: None,
    ) -> None:
        self.supply, self._samples_per_round = supply, samples_per_round
        self._steps_per_round, self._readers, self._holds = steps_per_round, readers, holds
        self._world_size, self._round, self._begin = world_size, 0, 0
        self.orders = self._made()

    @property
    def since(self) -> int:
        """The step from which on the orders count."""
        return self.step_of(self._round)

    def step_of(self, round_: int) -> int:
        """Return the number of a worker's first step in a round."""
        return round_ * self._steps_per_round

    def deal(self, world_size: int, round_: int) -> None:
        """Part the data anew among so many, from this round on; what was dealt before is not dealt again in this epoch."""
        self._begin += (round_ - self._round) * self._samples_per_round(self._world_size)
        self._world_size, self._round = world_size, round_
        self.orders = self._made()

    def restart(self) -> None:
        """Begin again at round 0, with as many workers as now."""
        self._round = self._begin = 0
        self.orders = self._made()

    def state(self) -> dict[str, int]:
        """Return what makes it again."""
        return {"world_size": self._world_size, "since": self._round, "begin": self._begin}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Part the data as it was when `state` was asked."""
        self._world_size, self._round, self._begin = state["world_size"], state["since"], state["begin"]
        self.orders = self._made()

    def mend(self) -> list[str]:
        """Start anew what prepares the data and has died; return its names. The orders are others then, of the same data."""
        if names := self.supply.mend():
            self.orders = self._made()
        return names

    def _made(self) -> list[Any]:
        held = self._holds(self._world_size)
        readers = self._world_size // self._readers if held is None else 1 + max(map(max, held))
        streams = self.supply.orders(readers, since=self.since, begin=self._begin)
        if held is not None:
            return [HeldOrder(tuple(streams[block] for block in blocks)) for blocks in held]
        return [order for order in streams for _ in range(self._readers)]

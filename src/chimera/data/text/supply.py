"""Providers of the windows of a text: learners read files themselves, or take windows from pipelines of actors."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

from chimera.core.engine import Engine
from chimera.core.errors import ActorLost
from chimera.data.supply import Supply
from chimera.data.text.orders import PulledOrder, TextOrder
from chimera.data.text.pipelines import Pipelines
from chimera.data.text.text import Text


@dataclass(frozen=True)
class OwnReading(Supply):
    """Each learner reads its own part of the text."""

    text: Text
    batch_size: int
    seed: int

    def orders(self, world_size: int, *, since: int = 0, begin: int = 0) -> list[TextOrder]:
        """Return an order for each of ``world_size`` parts."""
        return self.text.orders(world_size, self.batch_size, self.seed, since=since, begin=begin)


@dataclass(frozen=True)
class Piped(Supply):
    """Learners take windows from pipelines of actors."""

    engine: Engine
    pipelines: Pipelines
    batch_size: int
    virtual_time: bool
    _asked: dict[str, Any] = field(default_factory=dict)
    _known: dict[str, float] = field(default_factory=dict)

    def orders(self, world_size: int, *, since: int = 0, begin: int = 0) -> list[PulledOrder]:
        """Return the order of each learner, which refers to a pipeline."""
        watched = not self.virtual_time
        return self.pipelines.orders(world_size, self.batch_size, since=since, begin=begin, watched=watched)

    @property
    def actors(self) -> list[Any]:
        """The handles of all stages."""
        return self.pipelines.actors

    def mend(self) -> list[str]:
        """Replace dead stages."""
        return self.pipelines.mend()

    def fill(self) -> dict[str, float]:
        """Return the fill of the queues between stages; for a busy stage the last known value.

        Learners report the fill of their own queues, see `PulledOrder.told_fill`.
        """
        if not self.virtual_time:  # in virtual time these calls would cost time
            for name, ref in self.pipelines.fill(set(self._asked)).items():
                self._asked[name] = ref
            done, _ = self.engine.wait(self._asked.values(), len(self._asked), 0) if self._asked else ([], [])
            stand = set(map(id, done))
            for name in [name for name, ref in self._asked.items() if id(ref) in stand]:
                with contextlib.suppress(ActorLost):  # `mend` replaces the stage
                    self._known[name] = self.engine.get(self._asked.pop(name))
        return dict(self._known)

    def end(self) -> None:
        """Kill all stages."""
        self.pipelines.end()

"""How learners get at the windows of a text: each reads by itself, or pipelines of actors read for them."""

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
    """Each learner reads a part of the text of its own."""

    text: Text
    batch_size: int
    seed: int

    def orders(self, world_size: int, *, since: int = 0, begin: int = 0) -> list[TextOrder]:
        """Return as many parts."""
        return self.text.orders(world_size, self.batch_size, self.seed, since=since, begin=begin)


@dataclass(frozen=True)
class Piped(Supply):
    """Learners take what pipelines of actors make."""

    engine: Engine
    pipelines: Pipelines
    batch_size: int
    virtual_time: bool
    _asked: dict[str, Any] = field(default_factory=dict)
    _known: dict[str, float] = field(default_factory=dict)

    def orders(self, world_size: int, *, since: int = 0, begin: int = 0) -> list[PulledOrder]:
        """Return who takes from which pipeline."""
        watched = not self.virtual_time
        return self.pipelines.orders(world_size, self.batch_size, since=since, begin=begin, watched=watched)

    @property
    def actors(self) -> list[Any]:
        """All stages."""
        return self.pipelines.actors

    def mend(self) -> list[str]:
        """Start dead stages anew."""
        return self.pipelines.mend()

    def fill(self) -> dict[str, float]:
        """Return the queues between stages; one whose stage is busy is as full as when last known.

        How full those before the learners are, these tell themselves, see `PulledOrder.told_fill`.
        """
        if not self.virtual_time:  # there, questions would take some
            for name, ref in self.pipelines.fill(set(self._asked)).items():
                self._asked[name] = ref
            done, _ = self.engine.wait(self._asked.values(), len(self._asked), 0) if self._asked else ([], [])
            stand = set(map(id, done))
            for name in [name for name, ref in self._asked.items() if id(ref) in stand]:
                with contextlib.suppress(ActorLost):  # `mend` sees to that
                    self._known[name] = self.engine.get(self._asked.pop(name))
        return dict(self._known)

    def end(self) -> None:
        """End all stages."""
        self.pipelines.end()

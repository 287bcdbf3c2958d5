"""Providers of the windows of a text: learners read files themselves, or take windows from pipelines of actors."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

from chimera.core.engine import Engine
from chimera.core.errors import ActorLost
from chimera.data.provider import DataProvider
from chimera.data.text.pipeline.orders import PipelineOrder, TextOrder
from chimera.data.text.pipeline.pipelines import Pipelines
from chimera.data.text.text import Text


@dataclass(frozen=True)
class DirectReading(DataProvider):
    """Each learner reads its own part of the text."""

    text: Text
    batch_size: int
    seed: int

    def orders(self, world_size: int, *, since: int = 0, begin: int = 0) -> list[TextOrder]:
        """Return an order for each of ``world_size`` parts."""
        return self.text.orders(world_size, self.batch_size, self.seed, since=since, begin=begin)


@dataclass(frozen=True)
class PipelinedReading(DataProvider):
    """Learners take windows from pipelines of actors."""

    engine: Engine
    pipelines: Pipelines
    batch_size: int
    virtual_time: bool
    _pending: dict[str, Any] = field(default_factory=dict)
    _last_fill: dict[str, float] = field(default_factory=dict)

    def orders(self, world_size: int, *, since: int = 0, begin: int = 0) -> list[PipelineOrder]:
        """Return the order of each learner, which refers to a pipeline."""
        report_fill = not self.virtual_time
        return self.pipelines.orders(world_size, self.batch_size, since=since, begin=begin, report_fill=report_fill)

    @property
    def actors(self) -> list[Any]:
        """The handles of all stages."""
        return self.pipelines.actors

    def replace_lost(self) -> list[str]:
        """Replace dead stages."""
        return self.pipelines.replace_lost()

    def fill(self) -> dict[str, float]:
        """Return the fill of the queues between stages; for a busy stage the last known value.

        Learners report the fill of their own queues, see `PipelineOrder.reported_fill`.
        """
        if not self.virtual_time:  # in virtual time these calls would cost time
            for name, ref in self.pipelines.fill(set(self._pending)).items():
                self._pending[name] = ref
            done, _ = self.engine.wait(self._pending.values(), len(self._pending), 0) if self._pending else ([], [])
            ready = set(map(id, done))
            for name in [name for name, ref in self._pending.items() if id(ref) in ready]:
                with contextlib.suppress(ActorLost):  # `replace_lost` replaces the stage
                    self._last_fill[name] = self.engine.get(self._pending.pop(name))
        return dict(self._last_fill)

    def end(self) -> None:
        """Kill all stages."""
        self.pipelines.end()

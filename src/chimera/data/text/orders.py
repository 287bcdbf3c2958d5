"""Which windows a learner takes at each step, and from whom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from chimera.core.errors import ActorLost, ConfigurationError, TimeLimitError
from chimera.data.text.calls import Calls
from chimera.data.text.stream import WindowStream
from chimera.data.text.windows import Windows

BLOCK_WINDOWS = 8192
"""So many windows, or the next multiple of a batch, a learner asks for at a time."""

PATIENCE_S = 10.0
"""So long a learner waits for windows before it reads by itself."""


class Streams(Protocol):
    """What has the windows of each part of a text: a `Text`."""

    def stream(self, index: int, parts: int, seed: int) -> WindowStream:
        """Return the windows of a part."""


class Ticket(Protocol):
    """What an order gives out for a step, and a text takes."""

    def windows(self, text: Streams) -> Windows:
        """Return the windows of the batch."""


@dataclass(frozen=True)
class Stretch:
    """A ticket for ``count`` windows of a part, from window ``begin`` on, which are made where it is taken."""

    index: int
    parts: int
    seed: int
    begin: int
    count: int

    def windows(self, text: Streams) -> Windows:
        """Return the windows."""
        return text.stream(self.index, self.parts, self.seed).take(self.begin, self.count)


@dataclass(frozen=True)
class TextOrder:
    """One learner reads one part by itself, window after window. Stateless, as orders of samples are.

    Attributes
    ----------
    index, parts : which part of how many.
    batch_size : windows a step.
    seed : of sub-sampling.
    steps_per_epoch : after how many steps all learners have taken as many windows as a pass over the text has.
    share : how many windows of a pass are this learner's, on average.
    since, begin : the step from which on it reads so, and the window of the part with which that begins.
    """

    index: int
    parts: int
    batch_size: int
    seed: int
    steps_per_epoch: float
    share: float
    since: int = 0
    begin: int = 0

    def begin_of(self, step: int) -> int:
        """Return the window of the part with which a step begins."""
        return self.begin + (step - self.since) * self.batch_size

    def batch(self, step: int) -> Stretch:
        """Return the ticket of a step."""
        return Stretch(self.index, self.parts, self.seed, self.begin_of(step), self.batch_size)


class PulledOrder:
    """A learner takes its windows from a pipeline of actors, with calls under way while it computes.

    If the pipeline dies, or gives nothing for `PATIENCE_S`, the learner reads by itself until it gets another order.

    Parameters
    ----------
    outlet : the handle of the last stage.
    alone : what a learner would read that had the pipeline's part to itself.
    place, sharing : which of how many learners this is that take from it. With others each gets the next windows when it
        asks, and a step's batch is what happens to come; a step that is repeated gets the same again.
    since, begin : the step from which on it reads so, and the window of the part with which that begins.
    ahead : how many calls are under way.
    watched : whether the learner is to tell how full its queue is: to look takes time where time is virtual.
    """

    def __init__(
        self,
        outlet: Any,
        alone: TextOrder,
        *,
        place: int = 0,
        sharing: int = 1,
        ahead: int = 2,
        watched: bool = False,
    ) -> None:
        self._watched = watched
        self.batch_size, self.steps_per_epoch, self.share = alone.batch_size, alone.steps_per_epoch, alone.share
        self._outlet, self._alone, self._place, self._sharing, self._ahead = outlet, alone, place, sharing, ahead
        batch_size = alone.batch_size
        self._left_alone = False
        self._block_windows = -(-BLOCK_WINDOWS // batch_size) * batch_size
        self._calls = Calls(self._ask, self._block_windows, ahead)
        self._block = self._batch = np.empty((0, 0), np.int32)
        self._first = self._end = 0  # windows of the block at hand, and after the batch that was given out last
        self._step: int | None = None

    def batch(self, step: int) -> Pulled:
        """Return the ticket of a step."""
        return Pulled(self, step)

    def pull(self, step: int, text: Streams) -> Windows:
        """Return the windows of a step; in the learner's own calls."""
        if self._sharing > 1 and step == self._step:
            return self._batch
        if not self._left_alone:
            try:
                self._batch = self._pulled(step)
            except (ActorLost, TimeLimitError):
                self._left_alone = True
        if self._left_alone:
            self._batch = self._read(step, text)
        self._step = step
        return self._batch

    def _pulled(self, step: int) -> Windows:
        """Return what the pipeline gives. Shared, a learner counts the windows that it was given itself."""
        begin = self._end if self._sharing > 1 and self._step is not None else self._alone.begin_of(step)
        if not self._first <= begin < self._first + len(self._block):
            block = self._calls.get(begin, PATIENCE_S)
            self._first, self._block = begin, np.array(block, np.int32)  # a copy: the engine lends its memory
        self._end = begin + self.batch_size
        return self._block[begin - self._first : self._end - self._first]

    def _read(self, step: int, text: Streams) -> Windows:
        """Return what is read here instead; those who share the part take turns."""
        mine = self._alone.batch((step - self._alone.since) * self._sharing + self._place + self._alone.since)
        return mine.windows(text)

    def fill(self) -> float:
        """Return how full the queue before this learner is, 0 to 1."""
        return self._calls.fill()

    def told_fill(self) -> float | None:
        """Return the same for whoever shows it; None if it is not watched, or nothing was asked for yet."""
        return self.fill() if self._watched and len(self._block) else None

    def _ask(self, begin: int) -> Any:
        if self._sharing > 1:
            all_took = self._alone.begin + (begin - self._alone.begin) * self._sharing
            return self._outlet.next_windows(self._block_windows, all_took)
        return self._outlet.windows(begin, self._block_windows)

    def __reduce__(self) -> tuple[Any, ...]:
        return _pulled_order, (self._outlet, self._alone, self._place, self._sharing, self._ahead, self._watched)


def _pulled_order(outlet: Any, alone: TextOrder, place: int, sharing: int, ahead: int, watched: bool) -> PulledOrder:
    return PulledOrder(outlet, alone, place=place, sharing=sharing, ahead=ahead, watched=watched)


@dataclass(frozen=True, eq=False)
class Pulled:
    """A ticket for what a pipeline of actors makes."""

    order: PulledOrder
    step: int

    def windows(self, text: Streams) -> Windows:
        """Return the windows."""
        return self.order.pull(self.step, text)


def check(learners: int, batch_size: int, seed: int) -> None:
    """Raise ConfigurationError unless so many learners can read so."""
    if learners < 1:
        raise ConfigurationError(f"there are {learners} learners: at least 1 is needed")
    if batch_size < 1:
        raise ConfigurationError(f"batch_size is {batch_size}: it must be 1 or more")
    if seed < 0:
        raise ConfigurationError(f"the seed is {seed}: it must be 0 or more")


def text_orders(
    windows: int, learners: int, batch_size: int, seed: int, *, since: int = 0, begin: int = 0
) -> list[TextOrder]:
    """Return the order of each learner, each with a part of its own; ``begin`` windows were taken by all before."""
    check(learners, batch_size, seed)
    steps = windows / (learners * batch_size)
    share = windows / learners
    return [TextOrder(i, learners, batch_size, seed, steps, share, since, begin // learners) for i in range(learners)]

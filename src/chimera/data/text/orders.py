"""Which windows a learner takes at each step, and from whom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from chimera.core.errors import ConfigurationError
from chimera.data.text.calls import Calls
from chimera.data.text.stream import WindowStream
from chimera.data.text.windows import Windows

BLOCK_WINDOWS = 8192
"""So many windows, or the next multiple of a batch, a learner asks for at a time."""


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
    since, begin : the step from which on it reads so, and the window of the part with which that begins.
    """

    index: int
    parts: int
    batch_size: int
    seed: int
    steps_per_epoch: float
    since: int = 0
    begin: int = 0

    def batch(self, step: int) -> Stretch:
        """Return the ticket of a step."""
        begin = self.begin + (step - self.since) * self.batch_size
        return Stretch(self.index, self.parts, self.seed, begin, self.batch_size)


class PulledOrder:
    """A learner takes its windows from a pipeline of actors, with calls under way while it computes.

    Parameters
    ----------
    outlet : the handle of the last stage.
    batch_size, steps_per_epoch : as for `TextOrder`.
    shared : whether others take from it too. Each then gets the next windows when it asks, and a step's batch is what
        happens to come; a step that is repeated gets the same again. Else it is what `TextOrder` would read.
    since, begin : the step from which on it reads so, and the window of the part with which that begins.
    ahead : how many calls are under way.
    """

    def __init__(
        self,
        outlet: Any,
        batch_size: int,
        steps_per_epoch: float,
        *,
        shared: bool,
        since: int = 0,
        begin: int = 0,
        ahead: int = 2,
    ) -> None:
        self.batch_size, self.steps_per_epoch = batch_size, steps_per_epoch
        self._outlet, self._shared, self._since, self._begin, self._ahead = outlet, shared, since, begin, ahead
        self._block_windows = -(-BLOCK_WINDOWS // batch_size) * batch_size
        self._calls = Calls(self._ask, self._block_windows, ahead)
        self._block = self._batch = np.empty((0, 0), np.int32)
        self._first = self._end = 0  # windows of the block at hand, and after the batch that was given out last
        self._step = -1

    def batch(self, step: int) -> Pulled:
        """Return the ticket of a step."""
        return Pulled(self, step)

    def pull(self, step: int) -> Windows:
        """Return the windows of a step; in the learner's own calls.

        Raises
        ------
        ActorLost : the last stage, or one before it, is dead. Asked again once that is mended, it goes on.
        """
        if not (self._shared and step == self._step):
            begin = self._end if self._shared else self._begin + (step - self._since) * self.batch_size
            if not self._first <= begin < self._first + len(self._block):
                block = self._calls.get(begin)
                self._first, self._block = begin, np.array(block, np.int32)  # a copy: the engine lends its memory
            self._step, self._end = step, begin + self.batch_size
            self._batch = self._block[begin - self._first : self._end - self._first]
        return self._batch

    def waiting(self) -> int:
        """Return how many blocks of windows have come and wait for this learner."""
        return self._calls.done()

    def _ask(self, begin: int) -> Any:
        if self._shared:
            return self._outlet.next_windows(self._block_windows, self._begin)
        return self._outlet.windows(begin, self._block_windows)

    def __reduce__(self) -> tuple[Any, ...]:
        options = {"shared": self._shared, "since": self._since, "begin": self._begin, "ahead": self._ahead}
        return _pulled_order, (self._outlet, self.batch_size, self.steps_per_epoch, options)


def _pulled_order(outlet: Any, batch_size: int, steps_per_epoch: float, options: dict[str, Any]) -> PulledOrder:
    return PulledOrder(outlet, batch_size, steps_per_epoch, **options)


@dataclass(frozen=True, eq=False)
class Pulled:
    """A ticket for what a pipeline of actors makes."""

    order: PulledOrder
    step: int

    def windows(self, text: Streams) -> Windows:  # noqa: ARG002 - they are made elsewhere
        """Return the windows."""
        return self.order.pull(self.step)


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
    return [TextOrder(i, learners, batch_size, seed, steps, since, begin // learners) for i in range(learners)]

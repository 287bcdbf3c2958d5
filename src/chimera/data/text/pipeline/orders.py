"""The windows that a learner reads at each step, from its own files or from a pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from chimera.core.errors import ActorLost, ConfigurationError, TimeLimitError
from chimera.data.text.pipeline.prefetch import PrefetchQueue
from chimera.data.text.stream import WindowStream
from chimera.data.text.windows import Windows

BLOCK_WINDOWS = 8192
"""Windows per request of a learner, rounded up to a multiple of its batch."""

PIPELINE_TIMEOUT_S = 10.0
"""Seconds that a learner waits for windows of a pipeline before it reads the files itself."""


class Streams(Protocol):
    """The windows of each part of a text; implemented by `Text`."""

    def stream(self, index: int, parts: int, seed: int) -> WindowStream:
        """Return the windows of a part."""


class BatchSpec(Protocol):
    """A description of the batch of a step, which `Text.take` resolves to windows."""

    def windows(self, text: Streams) -> Windows:
        """Return the windows of the batch."""


@dataclass(frozen=True)
class WindowRange:
    """``count`` windows of a part from window ``begin`` on, made in the process that takes them."""

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
    """The order of a learner that reads one part of the text itself. It is stateless, as orders of samples are.

    Attributes
    ----------
    index, parts : index of the part, and the number of parts.
    batch_size : windows per step.
    seed : seed of sub-sampling.
    steps_per_epoch : steps in which all learners take as many windows as a pass over the text has.
    share : number of windows of a pass that this learner takes, on average.
    since, begin : first step of this order, and the window of the part at which it starts.
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
        """Return the index of the first window of a step."""
        return self.begin + (step - self.since) * self.batch_size

    def batch(self, step: int) -> WindowRange:
        """Return the description of a step's batch."""
        return WindowRange(self.index, self.parts, self.seed, self.begin_of(step), self.batch_size)


class PipelineOrder:
    """The order of a learner that takes its windows from a pipeline of actors, with calls in flight while it computes.

    If the pipeline dies, or returns nothing for `PIPELINE_TIMEOUT_S`, the learner reads the files itself
    until it gets another order.

    Parameters
    ----------
    last_stage : handle of the last stage.
    direct : order of a learner that reads the pipeline's part of the text itself.
    position, sharing : index of this learner among those that share the pipeline, and their number. If there are several, each
        request returns the next windows, so the batch of a step depends on timing. A repeated step gets the same batch.
    ahead : number of calls in flight.
    report_fill : whether the learner reports the fill of its queue; in virtual time this would cost time.
    """

    def __init__(
        self,
        last_stage: Any,
        direct: TextOrder,
        *,
        position: int = 0,
        sharing: int = 1,
        ahead: int = 2,
        report_fill: bool = False,
    ) -> None:
        self._report_fill = report_fill
        self.batch_size, self.steps_per_epoch, self.share = direct.batch_size, direct.steps_per_epoch, direct.share
        self._last_stage, self._direct, self._position, self._sharing, self._ahead = (
            last_stage,
            direct,
            position,
            sharing,
            ahead,
        )
        batch_size = direct.batch_size
        self._pipeline_failed = False
        self._block_windows = -(-BLOCK_WINDOWS // batch_size) * batch_size
        self._calls = PrefetchQueue(self._request, self._block_windows, ahead)
        self._block = self._batch = np.empty((0, 0), np.int32)
        self._first = self._end = 0  # first window of the current block; end of the last batch
        self._step: int | None = None

    def batch(self, step: int) -> PipelineBatch:
        """Return the description of a step's batch."""
        return PipelineBatch(self, step)

    def pull(self, step: int, text: Streams) -> Windows:
        """Return the windows of a step; called inside calls of the learner."""
        if self._sharing > 1 and step == self._step:
            return self._batch
        if not self._pipeline_failed:
            try:
                self._batch = self._from_pipeline(step)
            except (ActorLost, TimeLimitError):
                self._pipeline_failed = True
        if self._pipeline_failed:
            self._batch = self._from_files(step, text)
        self._step = step
        return self._batch

    def _from_pipeline(self, step: int) -> Windows:
        """Return windows of the pipeline. If it is shared, the learner counts the windows that it has received."""
        begin = self._end if self._sharing > 1 and self._step is not None else self._direct.begin_of(step)
        if not self._first <= begin < self._first + len(self._block):
            block = self._calls.get(begin, PIPELINE_TIMEOUT_S)
            self._first, self._block = begin, np.array(block, np.int32)  # a copy: the engine reuses its memory
        self._end = begin + self.batch_size
        return self._block[begin - self._first : self._end - self._first]

    def _from_files(self, step: int, text: Streams) -> Windows:
        """Read windows from the files instead; learners that share the part alternate."""
        own = self._direct.batch((step - self._direct.since) * self._sharing + self._position + self._direct.since)
        return own.windows(text)

    def fill(self) -> float:
        """Return the fill of this learner's input queue, 0 to 1."""
        return self._calls.fill()

    def reported_fill(self) -> float | None:
        """Return the fill for reports; None if it is not reported, or no windows were requested yet."""
        return self.fill() if self._report_fill and len(self._block) else None

    def _request(self, begin: int) -> Any:
        if self._sharing > 1:
            taken_by_all = self._direct.begin + (begin - self._direct.begin) * self._sharing
            return self._last_stage.next_windows(self._block_windows, taken_by_all)
        return self._last_stage.windows(begin, self._block_windows)

    def __reduce__(self) -> tuple[Any, ...]:
        return _pipeline_order, (
            self._last_stage,
            self._direct,
            self._position,
            self._sharing,
            self._ahead,
            self._report_fill,
        )


def _pipeline_order(
    last_stage: Any, direct: TextOrder, position: int, sharing: int, ahead: int, report_fill: bool
) -> PipelineOrder:
    return PipelineOrder(last_stage, direct, position=position, sharing=sharing, ahead=ahead, report_fill=report_fill)


@dataclass(frozen=True, eq=False)
class PipelineBatch:
    """The batch of a step, made by a pipeline of actors."""

    order: PipelineOrder
    step: int

    def windows(self, text: Streams) -> Windows:
        """Return the windows."""
        return self.order.pull(self.step, text)


def check(learners: int, batch_size: int, seed: int) -> None:
    """Raise ConfigurationError if a number is out of range."""
    if learners < 1:
        raise ConfigurationError(f"there are {learners} learners: at least 1 is needed")
    if batch_size < 1:
        raise ConfigurationError(f"batch_size is {batch_size}: it must be 1 or more")
    if seed < 0:
        raise ConfigurationError(f"the seed is {seed}: it must be 0 or more")


def text_orders(
    windows: int, learners: int, batch_size: int, seed: int, *, since: int = 0, begin: int = 0
) -> list[TextOrder]:
    """Return the order of each learner, which reads its own part. All learners took ``begin`` windows before ``since``."""
    check(learners, batch_size, seed)
    steps = windows / (learners * batch_size)
    share = windows / learners
    return [TextOrder(i, learners, batch_size, seed, steps, share, since, begin // learners) for i in range(learners)]

"""A gradient in chunks that workers pass on to one another: what all-reduce is made of, by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from chimera.codecs.codec import decode
from chimera.core.call import work
from chimera.core.errors import NonFiniteError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, shard_bounds, shard_views
from chimera.models.model import Model
from chimera.training.messages.rejection import ADVICE, Applied, Rejected, fault
from chimera.training.messages.tally import Tally
from chimera.training.optimizers.optimizer import Stepper


@dataclass
class PartialSum:
    """A gradient on its way to the sum of all.

    Attributes
    ----------
    chunks : views of it.
    gradients : how many gradients are in each.
    """

    gradient: Flat
    chunks: list[Flat]
    gradients: list[int]
    rejected: Rejected | None


class ChunkedSum:
    """The part of a `Learner` that sums its gradient with others', message by message. A rejected one counts for nothing."""

    _model: Model
    _step: int
    _tally: Tally
    _summing: PartialSum

    def _next_gradient(self, model: Any) -> tuple[Any, Rejected | None]:
        raise NotImplementedError

    def _own_optimizer(self) -> Stepper:
        raise NotImplementedError

    def contribute(self, parts: int, part: int | None = None) -> Encoded | None:
        """Compute the gradient of the next batch, in so many chunks; return one of them, if told which."""
        gradient, rejected = self._next_gradient(self._model)
        if rejected is not None:
            gradient.fill(0)
        bounds = shard_bounds(gradient.size, parts)
        self._summing = PartialSum(gradient, shard_views(gradient, bounds), [int(rejected is None)] * parts, rejected)
        return None if part is None else self._chunk(part)

    def add(self, part: int, *messages: Encoded) -> Encoded:
        """Add others' sums to a chunk, and return it."""
        held = self._summing
        for message in messages:
            with np.errstate(over="ignore", invalid="ignore"):
                held.chunks[part] += self._open(part, message)
            held.gradients[part] += int(message.meta["gradients"])
            work(elements=message.size)
        return self._chunk(part)

    def take(self, part: int, message: Encoded) -> Encoded:
        """Put the sum of all in the place of a chunk, and return it."""
        self._replace(part, message)
        return self._chunk(part)

    def step_reduced(self, part: int | None = None, message: Encoded | None = None) -> Applied:
        """Step by the mean, once the last chunk is there, which may be given.

        Raises
        ------
        NonFiniteError : the sum overflows.
        """
        if part is not None and message is not None:
            self._replace(part, message)
        held = self._summing
        count = min(held.gradients)
        if count:
            if why := fault(held.gradient, "the sum of all gradients"):
                raise NonFiniteError(f"step {self._step}: {why}: {ADVICE}")
            held.gradient *= np.float32(1 / count)
            self._own_optimizer().step(held.gradient, self._step)
        self._step += 1
        return Applied(self._step, count, () if held.rejected is None else (held.rejected,))

    def _replace(self, part: int, message: Encoded) -> None:
        np.copyto(self._summing.chunks[part], self._open(part, message))
        self._summing.gradients[part] = int(message.meta["gradients"])

    def _open(self, part: int, message: Encoded) -> Flat:
        self._tally.got([message])
        return decode(message, self._summing.chunks[part].size)

    def _chunk(self, part: int) -> Encoded:
        held = self._summing
        message = Encoded("identity", held.chunks[part].size, (held.chunks[part],), {"gradients": held.gradients[part]})
        self._tally.sent([message])
        return message

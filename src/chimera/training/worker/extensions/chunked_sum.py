"""Sums of gradients in chunks that workers send to one another: all-reduce by explicit messages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chimera.codecs.codec import decode
from chimera.core.call import work
from chimera.core.errors import NonFiniteError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, shard_bounds, shard_views
from chimera.training.messages.rejection import ADVICE, Applied, Rejected, fault
from chimera.training.worker.extension import WorkerExtension, worker_extension


@dataclass
class PartialSum:
    """A gradient to which chunks of other workers' gradients are added.

    Attributes
    ----------
    chunks : views of the gradient.
    gradients : the number of gradients in each chunk.
    """

    gradient: Flat
    chunks: list[Flat]
    gradients: list[int]
    rejected: Rejected | None


@worker_extension("chunked-sum")
class ChunkedSum(WorkerExtension):
    """The calls that sum gradients of workers message by message. A rejected gradient counts as zero."""

    on_host = False
    _summing: PartialSum

    def contribute(self, parts: int, part: int | None = None) -> tuple[None, Encoded | None]:
        """Compute the gradient of the next batch in ``parts`` chunks; return None, and chunk ``part`` if it is given.

        Calls that use the gradient receive the None, without bytes: if this call failed, they fail with its error.
        """
        gradient, rejected = self.worker.next_gradient()
        if rejected is not None:
            gradient.fill(0)
        bounds = shard_bounds(gradient.size, parts)
        self._summing = PartialSum(gradient, shard_views(gradient, bounds), [int(rejected is None)] * parts, rejected)
        return None, None if part is None else self._chunk(part)

    def add(self, part: int, own: None, *messages: Encoded) -> tuple[None, Encoded]:  # noqa: ARG002 - passes on an error
        """Add sums of other workers to a chunk; return None and the chunk. See `contribute` for ``own`` and the None."""
        held = self._summing
        for message in messages:
            with np.errstate(over="ignore", invalid="ignore"):
                held.chunks[part] += self._open(part, message)
            held.gradients[part] += int(message.meta["gradients"])
            work(elements=message.size)
        return None, self._chunk(part)

    def take(self, part: int, message: Encoded) -> tuple[None, Encoded]:
        """Replace a chunk by the sum of all workers; return None and the chunk, as `add` does."""
        self._replace(part, message)
        return None, self._chunk(part)

    def step_reduced(self, part: int | None = None, message: Encoded | None = None) -> Applied:
        """Step by the mean; ``part`` and ``message`` are the last chunk, if it is still missing.

        Raises
        ------
        NonFiniteError : the sum overflows.
        """
        if part is not None and message is not None:
            self._replace(part, message)
        held = self._summing
        count = min(held.gradients)
        if count:
            if reason := fault(held.gradient, "the sum of all gradients"):
                raise NonFiniteError(f"step {self.worker.step}: {reason}: {ADVICE}")
            held.gradient *= np.float32(1 / count)
            self.worker.optimizer.step(held.gradient, self.worker.step)
        self.worker.step += 1
        return Applied(self.worker.step, count, () if held.rejected is None else (held.rejected,))

    def _replace(self, part: int, message: Encoded) -> None:
        np.copyto(self._summing.chunks[part], self._open(part, message))
        self._summing.gradients[part] = int(message.meta["gradients"])

    def _open(self, part: int, message: Encoded) -> Flat:
        self.worker.tally.got([message])
        return decode(message, self._summing.chunks[part].size)

    def _chunk(self, part: int) -> Encoded:
        held = self._summing
        message = Encoded("identity", held.chunks[part].size, (held.chunks[part],), {"gradients": held.gradients[part]})
        self.worker.tally.sent([message])
        return message

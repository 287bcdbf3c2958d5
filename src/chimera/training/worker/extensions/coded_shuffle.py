"""Calls of coded distributed computing (Li et al. 2018): map the blocks that a worker holds, shuffle parts, sum them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from chimera.core.message import Encoded
from chimera.core.parameters import shard_views
from chimera.strategies.shuffle import Shuffle
from chimera.training.messages.message_key import Key, merged
from chimera.training.messages.rejection import Applied
from chimera.training.worker.extension import worker_extension
from chimera.training.worker.extensions.chunked_sum import ChunkedSum, PartialSum
from chimera.training.worker.extensions.mapped_blocks import MappedBlocks


@worker_extension("coded-shuffle")
class CodedShuffle(ChunkedSum):
    """The calls that sum gradients together with workers that hold the same blocks."""

    _mapped: MappedBlocks

    def map_blocks(self, shuffle: Shuffle, place: int, step: int) -> Applied:
        """Compute the gradients of all blocks that the worker at ``place`` holds, and keep them until the next step."""
        order: Any = self.worker.gradients.order  # a `MultiBlockOrder`
        gradients, rejected = {}, []
        for i, (block, part) in enumerate(zip(shuffle.held(place), order.parts, strict=True)):
            gradient, fault = self.worker.gradients.of(part, self.worker.model, step, 1.0, own=i < shuffle.own(place))
            gradients[block] = gradient.copy() if fault is None else None
            rejected += [] if fault is None else [fault]
        key = Key(int(step / order.steps_per_epoch), step, 0, self.worker.rank)
        self._mapped = MappedBlocks(
            shuffle, place, gradients, self.worker.model.layout, key=key, codec=self.worker.codec, seed=self.worker.seed
        )
        self.worker.step = step
        return Applied(step, len(gradients) - len(rejected), tuple(rejected))

    def shuffled(self, numbers: Sequence[int]) -> list[Encoded]:
        """Return the packets with these numbers."""
        messages = [self._mapped.packet(number) for number in numbers]
        self.worker.tally.sent(messages)
        return messages

    def reduced(self, there: tuple[int, ...], *messages: Encoded) -> list[Encoded]:
        """Return the sums of this worker's parts over all blocks, from packets, if the workers at ``there`` participate."""
        self.worker.tally.got(messages)
        sums = self._mapped.sums(there, merged(messages, self.worker.step))
        self.worker.tally.sent(sums)
        return sums

    def step_shuffled(self, *sums: Encoded) -> Applied:
        """Step by the mean gradient of all blocks that were not rejected, from the sums of all parts."""
        gradient = np.empty(self.worker.model.layout.size, np.float32)
        views = shard_views(gradient, self._mapped.bounds)
        self._summing = PartialSum(gradient, views, [0] * len(views), None)
        for part, message in merged(sums, self.worker.step).items():
            self._replace(part, message)
        return self.step_reduced()

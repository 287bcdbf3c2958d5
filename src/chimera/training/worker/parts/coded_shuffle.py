"""A worker's part in coded distributed computing (Li et al. 2018): map the blocks it holds, shuffle parts, add them up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from chimera.core.message import Encoded
from chimera.core.parameters import shard_views
from chimera.models.model import Model
from chimera.strategies.shuffle import Shuffle
from chimera.training.messages.message_key import Key, merged
from chimera.training.messages.rejection import Applied
from chimera.training.messages.tally import Tally
from chimera.training.worker.gradients import Gradients
from chimera.training.worker.parts.chunked_sum import PartialSum
from chimera.training.worker.parts.mapped_blocks import MappedBlocks


class CodedShuffle:
    """The part of a `Learner` that shares the work of adding up gradients with others who hold the same blocks."""

    _rank: int
    _model: Model
    _step: int
    _seed: int
    _codec: tuple[str, Mapping[str, Any]]
    _tally: Tally
    _gradients: Gradients
    _summing: PartialSum
    _mapped: MappedBlocks

    def step_reduced(self) -> Applied:
        """See `ChunkedSum`, here and below."""
        raise NotImplementedError

    def _replace(self, part: int, message: Encoded) -> None:
        raise NotImplementedError

    def map_blocks(self, shuffle: Shuffle, place: int, step: int) -> Applied:
        """Compute the gradients of all blocks that the worker at this place holds, and keep them until the next step."""
        order: Any = self._gradients.order  # a `HeldOrder`
        gradients, rejected = {}, []
        for i, (block, part) in enumerate(zip(shuffle.held(place), order.parts, strict=True)):
            gradient, fault = self._gradients.of(part, self._model, step, 1.0, own=i < shuffle.own(place))
            gradients[block] = gradient.copy() if fault is None else None
            rejected += [] if fault is None else [fault]
        key = Key(int(step / order.steps_per_epoch), step, 0, self._rank)
        self._mapped = MappedBlocks(
            shuffle, place, gradients, self._model.layout, key=key, codec=self._codec, seed=self._seed
        )
        self._step = step
        return Applied(step, len(gradients) - len(rejected), tuple(rejected))

    def shuffled(self, numbers: Sequence[int]) -> list[Encoded]:
        """Return the packets of these numbers."""
        messages = [self._mapped.packet(number) for number in numbers]
        self._tally.sent(messages)
        return messages

    def reduced(self, there: tuple[int, ...], *messages: Encoded) -> list[Encoded]:
        """Return the sum over all blocks of each part that is its own when these places are there, from others' packets."""
        self._tally.got(messages)
        sums = self._mapped.sums(there, merged(messages, self._step))
        self._tally.sent(sums)
        return sums

    def step_shuffled(self, *sums: Encoded) -> Applied:
        """Step by the mean of all blocks that were not rejected, from the sums of all parts."""
        gradient = np.empty(self._model.layout.size, np.float32)
        views = shard_views(gradient, self._mapped.bounds)
        self._summing = PartialSum(gradient, views, [0] * len(views), None)
        for part, message in merged(sums, self._step).items():
            self._replace(part, message)
        return self.step_reduced()

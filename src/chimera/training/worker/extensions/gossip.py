"""Calls of workers with neighbours and without servers: mix, track, keep public copies (docs/explanation/decentralised.md)."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from chimera.codecs.codec import CODECS, Codec, State, decode
from chimera.core.call import work
from chimera.core.errors import CodecError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, reduce_in_order
from chimera.training.messages.rejection import Applied, Rejected, fault
from chimera.training.worker.extension import WorkerExtension, worker_extension

_STREAMS = "models", "trackers"
"""The kinds of messages; each has its own codec, because codecs have state."""


@dataclass
class Memory:
    """State of a worker with neighbours, besides its model.

    Attributes
    ----------
    members : the ranks for which the other attributes are valid; empty at first.
    codecs : codecs by stream.
    tracker, before : for gradient tracking, y_i and the gradient of the last step, shape (P,).
    copies : the public copies, of its own model and its neighbours', by rank.
    """

    members: tuple[int, ...] = ()
    codecs: dict[str, Codec] = field(default_factory=dict)
    tracker: Flat | None = None
    before: Flat | None = None
    copies: dict[int, Flat] = field(default_factory=dict)


@worker_extension("gossip")
class Gossip(WorkerExtension):
    """The calls of decentralised strategies: a worker exchanges models with its neighbours. Vectors are on the host."""

    _gossip: Memory | None = None
    _kept_streams: Mapping[str, State] = {}  # restored states of codecs that are not created yet
    _sent: Flat | None = None  # the change of this worker's public copy by its last message
    _computed_gradient: tuple[Flat, Rejected | None] | None = None
    _unread: tuple[str, ...] = ()  # why messages since the last step were dropped

    def known(self) -> tuple[tuple[int, ...], int]:
        """Return the ranks and the step for which the state besides the model is valid."""
        return self._memory.members, self.worker.step

    def message(self) -> Encoded:
        """Return the model, encoded."""
        return self._pack("models", self.worker.model.parameters())

    def mix_and_step(self, row: Sequence[tuple[int, float]], *messages: Encoded) -> tuple[Encoded, Applied]:
        """Mix the models, and step by the gradient at this worker's model; ``row`` holds its weight, then the neighbours'."""
        gradient, rejected = self.worker.next_gradient()
        self._mix(self.worker.model.parameters(), row, self._opened(messages))
        applied = self._descend(gradient, rejected)
        return self.message(), applied

    def track(self, members: Sequence[int]) -> None:
        """Start to track the mean gradient of these ranks, from this worker's last gradient or from zero."""
        memory = self._memory
        memory.members = tuple(members)
        if memory.before is not None:
            memory.tracker = memory.before.copy()
        else:
            memory.before, memory.tracker = np.zeros((2, self.worker.model.layout.size), np.float32)

    def tracked_messages(self) -> tuple[Encoded, Encoded]:
        """Return the model and the tracker, encoded."""
        return self.message(), self._pack("trackers", self._tracked[0])

    def track_and_step(self, row: Sequence[tuple[int, float]], *messages: Encoded) -> tuple[Encoded, Encoded, Applied]:
        """Mix tracker and model, and step by the tracker; ``messages`` are the neighbours' models, then their trackers."""
        tracker, before = self._tracked
        gradient, rejected = self.worker.next_gradient()
        opened = self._opened(messages)
        self._mix(tracker, row, opened[len(row) - 1 :])
        if rejected is None:
            with np.errstate(over="ignore", invalid="ignore"):
                tracker += gradient
                tracker -= before
            np.copyto(before, gradient)
            work(elements=3 * len(tracker))
        self._mix(self.worker.model.parameters(), row, opened[: len(row) - 1])
        # A worker with a rejected gradient still moves by the tracked gradients of the others.
        self.worker.optimizer.step(tracker.copy(), self.worker.step)
        return *self.tracked_messages(), self._stepped(rejected)

    def know(self, members: Sequence[int], ranks: Sequence[int], *whole: Encoded) -> None:
        """Start with public copies of the models of ``ranks``, itself and its neighbours; its own if all are equal."""
        memory, own = self._memory, self.worker.model.parameters()
        memory.members = tuple(members)
        models = self._opened(whole) if whole else [own] * (len(ranks) - 1)
        given = [own, *[own if model is None else model for model in models]]
        memory.copies = {rank: model.copy() for rank, model in zip(ranks, given, strict=True)}

    def difference(self) -> Encoded:
        """Return the difference between the model and its public copy, encoded; `move_and_step` adds it to the copy."""
        model = self.worker.model.parameters()
        with np.errstate(over="ignore", invalid="ignore"):
            message = self._pack("models", model - self._memory.copies[self.worker.rank])
        self._sent = decode(message, model.size).copy()
        work(elements=2 * model.size)
        return message

    def move_and_step(
        self, row: Sequence[tuple[int, float]], gamma: float, *messages: Encoded
    ) -> tuple[Encoded, Applied]:
        """Add the differences to the public copies, move towards the neighbours', and step; ``row`` holds ranks and weights."""
        model, copies, sent = self.worker.model.parameters(), self._memory.copies, self._sent
        assert sent is not None
        own = copies[self.worker.rank]
        with np.errstate(over="ignore", invalid="ignore"):
            own += sent
            for (rank, _), moved in zip(row[1:], self._opened(messages), strict=True):
                if moved is not None:
                    copies[rank] += moved
            for rank, weight in row[1:]:
                model += np.float32(gamma * weight) * (copies[rank] - own)
        work(elements=(3 * len(row) - 2) * len(model))
        applied = self._descend(*self.worker.next_gradient())
        return self.difference(), applied

    def compute(self) -> int:
        """Compute the gradient of the next batch and keep it; return the number of gradients computed."""
        self._computed_gradient = self.worker.next_gradient()
        return self.worker.step + 1

    def step_computed(self, computed: int) -> tuple[Encoded, Applied]:  # noqa: ARG002 - passes on an error
        """Step by the computed gradient; return the model, encoded.

        ``computed`` is what `compute` returned: if that call failed, this one fails with its error.
        """
        assert self._computed_gradient is not None
        applied = self._descend(*self._computed_gradient)
        return self.message(), applied

    def approach(self, own: Encoded, theirs: Encoded) -> None:
        """Move the model by half the difference between the sent models of a neighbour and of this worker."""
        model, neighbour = self.worker.model.parameters(), self._vector_of(theirs, "the message")
        if neighbour is not None:
            with np.errstate(over="ignore", invalid="ignore"):
                model += np.float32(0.5) * (neighbour - decode(own, model.size))
        work(elements=3 * model.size)

    def mean(self, *weights: Encoded) -> Encoded:
        """Return the mean of the decodable models; this worker's model if there is none."""
        size = self.worker.model.layout.size
        models = self._readable(weights) or [self.worker.model.parameters()]
        return Encoded("identity", size, (reduce_in_order(models, np.empty(size, np.float32), 1 / len(models)),))

    def consensus_distance(self, *weights: Encoded) -> float:
        """Return the root of the mean squared distance of the decodable models from their mean."""
        mean = self.mean(*weights).arrays[0]
        with np.errstate(over="ignore", invalid="ignore"):
            apart = [model - mean for model in self._readable(weights) or [self.worker.model.parameters()]]
            return float(np.sqrt(np.mean([np.dot(each, each) for each in apart], dtype=np.float64)))

    def _readable(self, weights: Sequence[Encoded]) -> list[Flat]:
        found = []
        for each in weights:
            with contextlib.suppress(CodecError):
                found.append(decode(each, self.worker.model.layout.size))
        return found

    def state(self) -> dict[str, Any]:
        """Return the state besides the model; empty without neighbours."""
        memory = self._gossip
        if memory is None:
            return {}
        return {
            "rank": self.worker.rank,
            "members": memory.members,
            # A stream that was not used since a restart keeps its restored state.
            "codecs": {**self._kept_streams, **{stream: codec.state() for stream, codec in memory.codecs.items()}},
            "tracking": {} if memory.tracker is None else {"tracker": memory.tracker, "before": memory.before},
            "copies": {str(rank): copy for rank, copy in memory.copies.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` returned; the state of another rank, whose model was copied, is not valid."""
        self._gossip, self._kept_streams, self._sent = None, {}, None
        if not state or state["rank"] != self.worker.rank:
            return
        tracking = {name: np.array(vector, np.float32) for name, vector in state["tracking"].items()}
        copies = {int(rank): np.array(copy, np.float32) for rank, copy in state["copies"].items()}
        self._gossip = Memory(
            tuple(state["members"]), tracker=tracking.get("tracker"), before=tracking.get("before"), copies=copies
        )
        self._kept_streams = state["codecs"]

    @property
    def _memory(self) -> Memory:
        if self._gossip is None:
            self._gossip = Memory()
        return self._gossip

    @property
    def _tracked(self) -> tuple[Flat, Flat]:
        memory = self._memory
        assert memory.tracker is not None
        assert memory.before is not None
        return memory.tracker, memory.before

    def _descend(self, gradient: Flat, rejected: Rejected | None) -> Applied:
        """Step, unless the gradient was rejected."""
        if rejected is None:
            self.worker.optimizer.step(gradient, self.worker.step)
        return self._stepped(rejected)

    def _stepped(self, rejected: Rejected | None) -> Applied:
        """Count a step, and return its result with the rejections."""
        left_out = [] if rejected is None else [rejected]
        left_out += [Rejected(self.worker.rank, self.worker.step, reason) for reason in self._unread]
        self.worker.step, self._unread = self.worker.step + 1, ()
        return Applied(self.worker.step, int(rejected is None), tuple(left_out))

    def _mix(self, vector: Flat, row: Sequence[tuple[int, float]], others: Sequence[Flat | None]) -> None:
        """Replace a vector by the weighted sum of itself and others; it also gets the weights of missing ones."""
        there = [(weight, other) for (_, weight), other in zip(row[1:], others, strict=True) if other is not None]
        own = row[0][1] if len(there) == len(others) else 1 - sum(weight for weight, _ in there)
        with np.errstate(over="ignore", invalid="ignore"):
            vector *= np.float32(own)
            for weight, other in there:
                vector += np.float32(weight) * other
        work(elements=len(row) * len(vector))

    def _opened(self, messages: Sequence[Encoded]) -> list[Flat | None]:
        """Return the vectors of neighbours' messages; None for one that cannot be decoded or is not finite.

        The next step reports these. An invalid message of a neighbour must not end its receivers.
        """
        return [self._vector_of(message, f"message {i} of {len(messages)}") for i, message in enumerate(messages, 1)]

    def _vector_of(self, message: Encoded, name: str) -> Flat | None:
        reason = ""
        try:
            vector = decode(message, self.worker.model.layout.size)
            self.worker.tally.got([message])
            reason = fault(vector, "it")
        except CodecError as error:
            reason = str(error)
        if reason:
            self._unread += (f"{name} from its neighbours is left out: {reason}",)
        return None if reason else vector

    def _pack(self, stream: str, vector: Flat) -> Encoded:
        codecs = self._memory.codecs
        if stream not in codecs:
            # No two codecs of a run draw the same random numbers.
            own = (self.worker.seed * 1_000_003 + self.worker.rank) * 1_000_003
            codecs[stream] = CODECS.create(*self.worker.codec, seed=own + _STREAMS.index(stream))
            if stream in self._kept_streams:
                codecs[stream].restore(self._kept_streams[stream])
        message = codecs[stream].pack(vector, self.worker.model.layout)
        self.worker.tally.sent([message])
        return message

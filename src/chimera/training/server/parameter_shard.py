"""The server: an actor that holds a slice of the parameters and the optimizer that steps it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.codecs.codec import CODECS, decode, rows_of
from chimera.core.call import work
from chimera.core.errors import CodecError, ConfigurationError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout, all_finite, reduce_in_order
from chimera.core.rows import SparseRows
from chimera.training.aggregation.aggregation import AGGREGATIONS, Aggregation
from chimera.training.messages.message_key import merged
from chimera.training.messages.rejection import Applied, Rejected, fault
from chimera.training.optimizers.optimizer import MakesStepper, OptimizerSettings
from chimera.training.plugin import Named, named
from chimera.training.privacy.settings import Privacy
from chimera.training.privacy.summing import Summing
from chimera.training.server.downlink import Downlink

_EPSILON = 1e-7  # as in the paper's experiments: keeps the division defined


class ParameterShard(Summing):
    """One server.

    Parameters
    ----------
    weights : the initial values of its slice, shape (p,).
    layout : the tensors in the slice.
    optimizer : what steps it.
    codec : name and options of the codec of the downlink.
    uplink : those of the codec of the uplink, so that this process knows it.
    seed : of what is random in the downlink's codec, and of noise.
    privacy : what becomes of the workers' updates, see `Summing`.
    """

    precision: type[np.floating[Any]] = np.float32  # of its slice
    hosted = False  # where some actors live in nodes and others in the driver (the engine http), this one lives in the driver

    def __init__(
        self,
        weights: Flat,
        layout: Layout,
        *,
        optimizer: MakesStepper,
        codec: tuple[str, Mapping[str, Any]] = ("identity", {}),
        uplink: tuple[str, Mapping[str, Any]] = ("identity", {}),
        seed: int = 0,
        privacy: Privacy | None = None,
    ) -> None:
        self._privacy, self._noise_key = privacy, seed
        self._weights = np.array(weights, self.precision)
        self._mean: Flat | SparseRows = np.empty_like(self._weights)
        self._room, self._rows = self._mean, layout.rows
        self._rule: tuple[Named, Aggregation] | None = None  # by which vectors were last made one
        self._optimizer = optimizer.stepper(self._weights)
        self._rate: Callable[[int], float] | None = None  # of plain SGD, by step
        if isinstance(optimizer, OptimizerSettings) and optimizer.plain:
            self._rate = optimizer.learning_rate
        curvature = self._optimizer.curvature
        self._downlink = Downlink(codec, self._weights, layout, curvature=curvature, seed=seed)
        CODECS.create(*uplink)
        self._rooms: dict[int, Flat] = {}
        self._mean_square: Flat | None = None  # of gradients; its memory is spent where it is asked for
        self._steps = 0
        self._beside: Flat | None = None  # what stands beside the weights, where workers enclose something

    def model(self) -> Encoded:
        """Return the slice for whoever looks at the model, see `Downlink.model`."""
        return self._downlink.model()

    def weights(self) -> Encoded:
        """Return the slice as workers begin with it, encoded like what `update` returns."""
        return self._downlink.broadcast()

    def message(self, receiver: str, session: int) -> Encoded:
        """Return the slice as it is, for one worker, where each has messages of its own; see `Downlink.message`."""
        return self._downlink.message(receiver, session)

    def rows(self, wanted: NDArray[np.uint32]) -> Encoded:
        """Return, as they are, the rows of these numbers, ascending: those that a worker needs next."""
        return self._downlink.rows(wanted)

    def update(
        self, *gradients: Encoded | Rejected, aggregation: Named = "mean", reached: bool = False, scale: float = 1.0
    ) -> tuple[Encoded, Applied]:
        """Step with the mean of the finite gradients, in the order given; return the new slice, encoded, and what was done.

        ``aggregation``, a name or a table, is what is taken in place of the mean. What was ``reached`` are weights, not
        gradients: the gradient is the way back from their mean, and where that is just added, the mean itself is the new
        slice. The mean is multiplied by ``scale``, for senders that weight what they send, when not all of them are there.
        Without any gradient the slice stays as it is. Senders reject what is not finite; what comes all the same,
        cannot be read, or overflows on the way or in the sum, is left out too.

        Raises
        ------
        ConfigurationError : the aggregation can make nothing of so few gradients.
        """
        rule = self._rule_of(aggregation)
        rejected = [gradient for gradient in gradients if isinstance(gradient, Rejected)]
        given = {i: each for i, each in enumerate(gradients, 1) if not isinstance(each, Rejected)}
        messages = self._unmasked(given)
        vectors, unread = self._unpacked(messages, len(gradients), by_rows=rule.by_rows)
        rejected += unread
        # A sum shows at once if one of the vectors is not finite; other rules would hide it, or go wrong by it.
        if vectors and not (rule.linear and self._aggregate(vectors, rule)):
            rejected += self._left_out(vectors, len(gradients), rule)
        work(elements=len(values_of(self._mean)) * len(gradients))
        givers = len(vectors) and len(vectors) + len(given) - len(messages)  # masked ones came as one message
        if vectors:
            self._blur(values_of(self._mean), givers, self._steps)
        scale = self._divided(givers, scale)
        if vectors and scale != 1:
            mean = values_of(self._mean)
            mean *= np.float32(scale)
        if vectors and reached:
            return self._moved(givers, rejected)
        return self._stepped(givers, rejected)

    def combine(self, *messages: Encoded | Rejected, shares: Mapping[int, float], step: int) -> tuple[Encoded, Applied]:
        """Step as `update` does, with the sum of what was sent of a step, each block times its share, and say what was done.

        Messages have a `Key`: one of each block counts, in whatever order they come, and those of other steps do not. One that
        is rejected is of gradients that nobody has added. While a block is missing, the slice stays as it is.
        """
        rejected = [message for message in messages if isinstance(message, Rejected)]
        there = merged((message for message in messages if isinstance(message, Encoded)), step)
        there = {block: message for block, message in there.items() if block in shares}
        if len(shares) - len(there) > len(rejected):
            missing = ", ".join(str(block) for block in shares if block not in there)
            return self._stepped(0, [*rejected, Rejected(None, step, f"nothing came of the blocks {missing}")])
        rule = {"name": "combination", "shares": [shares[block] for block in there]}
        return self.update(*there.values(), *rejected, aggregation=rule if there else "mean")

    def enclose(self, *changes: Encoded | Rejected, workers: int = 1) -> Encoded:
        """Add the sum of the changes, divided by the number of ``workers``, to the vector beside the weights; return that.

        It is 0 at first. A change that was rejected, cannot be read or is not finite, is left out.
        """
        if self._beside is None:
            self._beside = np.zeros_like(self._weights)
        sent = {i: change for i, change in enumerate(changes, 1) if not isinstance(change, Rejected)}
        read, _ = self._read(sent, len(changes), lambda change, _: decode(change, self._weights.size))
        vectors = [vector for vector in read.values() if all_finite(vector)]
        if vectors:
            total = reduce_in_order(vectors, np.empty_like(self._weights), 1 / workers)
            self._beside += total
        work(elements=self._weights.size * (len(vectors) + 1))
        return Encoded("identity", self._beside.size, (self._beside,))

    def compensate(
        self, gradient: Encoded | Rejected, then: Encoded, lambda_: float, decay: float | None = None
    ) -> tuple[Encoded, Applied]:
        """Step with a gradient that was computed at the weights ``then``, corrected for the way since (see `DelayCompensated`).

        With ``decay``, ``lambda_`` is divided by the root of the moving mean of the squared gradient. What is not finite, or
        is not any more once corrected, is rejected as in `update`.
        """
        if isinstance(gradient, Rejected):
            return self._stepped(0, [gradient])
        try:
            given, mean_square = self._decoded(gradient, 0), self._mean_square
        except CodecError as error:
            return self._stepped(0, [Rejected(None, self._steps, f"the gradient cannot be read: {error}")])
        with np.errstate(over="ignore", invalid="ignore"):
            way = self._weights - self._downlink.vector(then)
            way *= np.float32(lambda_)
            square = np.square(given)
            way *= square
            if decay is not None:
                square *= np.float32(1 - decay)
                if mean_square is not None:
                    square += mean_square * np.float32(decay)
                mean_square = square
                way /= np.sqrt(mean_square + np.float32(_EPSILON))
            corrected = np.add(given, way, out=self._room)
        work(elements=self._weights.size * 2)
        if not all_finite(corrected):
            why = fault(given, "the gradient") or fault(corrected, "the corrected gradient")
            return self._stepped(0, [Rejected(None, self._steps, why)])
        self._mean, self._mean_square = corrected, mean_square
        return self._stepped(1, [])

    def _rule_of(self, aggregation: Named) -> Aggregation:
        if self._rule is None or self._rule[0] != aggregation:
            self._rule = aggregation, AGGREGATIONS.create(*named(aggregation))
        return self._rule[1]

    def _unpacked(
        self, messages: Mapping[int, Encoded], total: int, *, by_rows: bool
    ) -> tuple[dict[int, Any], list[Rejected]]:
        """Return the vectors by place among ``total``, and what cannot be read.

        The vectors are rows if all of them come so and that is of use.
        """
        found, unread = self._read(messages, total, lambda each, _: rows_of(each, self._rows)) if by_rows else ({}, [])
        if not by_rows or any(rows is None for rows in found.values()):
            found, unread = self._read(messages, total, self._decoded)
        return found, unread

    def _read(
        self, messages: Mapping[int, Encoded], total: int, read: Callable[[Encoded, int], Any]
    ) -> tuple[dict[int, Any], list[Rejected]]:
        found: dict[int, Any] = {}
        unread: list[Rejected] = []
        for i, each in messages.items():
            try:
                found[i] = read(each, i)
            except CodecError as error:
                unread.append(Rejected(None, self._steps, f"gradient {i} of {total} cannot be read: {error}"))
        return found, unread

    def _decoded(self, gradient: Encoded, place: int) -> Flat:
        """Decode into memory that is kept for this place; it costs nothing where a message has its vector at hand."""
        room = self._rooms.get(place)
        if room is None:
            room = self._rooms[place] = np.empty_like(self._weights)
        return decode(gradient, room.size, room)

    def _aggregate(self, vectors: Mapping[int, Any], rule: Aggregation) -> bool:
        """Set the mean; return whether it is finite."""
        given = list(vectors.values())
        rule.check(len(given))
        by_rows = isinstance(given[0], SparseRows)
        self._mean = rule.sparse(given, self._rows) if by_rows else rule.dense(given, self._room, self._rows)
        return all_finite(values_of(self._mean))

    def _left_out(self, vectors: dict[int, Any], total: int, rule: Aggregation) -> list[Rejected]:
        """Take what is not finite out of the vectors (by place among ``total``), set the mean of the rest; name the former."""
        faults = {i: fault(values_of(vector), f"gradient {i} of {total}") for i, vector in vectors.items()}
        for i in [i for i, why in faults.items() if why]:
            del vectors[i]
        found = [why for why in faults.values() if why]
        if vectors and not self._aggregate(vectors, rule):
            found.append(f"the sum of {len(vectors)} gradients overflows")
            vectors.clear()
        return [Rejected(None, self._steps, why) for why in found]

    def _moved(self, givers: int, rejected: Sequence[Rejected]) -> tuple[Encoded, Applied]:
        """Step towards the mean of what was reached; to that itself, without rounding, where the optimizer adds the change."""
        mean = self._rows.filled(self._mean) if isinstance(self._mean, SparseRows) else self._mean
        if self._rate is None or self._rate(self._steps) != 1:
            self._mean = np.subtract(self._weights, mean, out=mean)
            return self._stepped(givers, rejected)
        np.copyto(self._weights, mean)
        self._steps += 1
        return self._downlink.broadcast(), Applied(self._steps, givers, tuple(rejected))

    def _stepped(self, gradients: int, rejected: Sequence[Rejected]) -> tuple[Encoded, Applied]:
        """Step with the mean, if any gradients are in it, and return the new slice and what was done."""
        if gradients:
            if isinstance(self._mean, SparseRows):
                self._optimizer.step_rows(self._mean, self._rows, self._steps)
            else:
                self._optimizer.step(self._mean, self._steps)
            self._steps += 1
        applied = Applied(self._steps, gradients, tuple(rejected), self._mechanism(gradients))
        return self._downlink.broadcast(), applied

    def state(self) -> dict[str, Any]:
        """Return weights, optimizer and step."""
        return {
            "step": self._steps,
            "weights": self._weights,
            "optimizer": self._optimizer.state(),
            "mean_square": self._mean_square,
            "codec": self._downlink.state(),
            "beside": self._beside,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` returned.

        Raises
        ------
        ConfigurationError : it is of another slice.
        """
        if (held := len(state["weights"])) != self._weights.size:
            raise ConfigurationError(
                f"the checkpoint has a server with {held} parameters where there are {self._weights.size} now: it was "
                "written by a version that cut shards within rows; begin anew, or resume with that version"
            )
        np.copyto(self._weights, state["weights"])
        self._optimizer.restore(state["optimizer"])
        self._steps = state["step"]
        if "codec" in state:  # older checkpoints have none
            self._downlink.restore(state["codec"])
        beside = state.get("beside")
        self._beside = None if beside is None else np.array(beside, np.float32)
        mean_square = state.get("mean_square")
        self._mean_square = None if mean_square is None else np.array(mean_square, np.float32)


def values_of(vector: Flat | SparseRows) -> Flat:
    """Return all elements that may be other than zero."""
    return vector.values if isinstance(vector, SparseRows) else vector

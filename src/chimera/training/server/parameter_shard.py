"""The parameter server: an actor with a slice of the parameters and its optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.codecs.codec import CODECS, decode
from chimera.core.call import empty, work
from chimera.core.errors import CodecError, ConfigurationError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout, all_finite, reduce_in_order
from chimera.core.rows import SparseRows
from chimera.training.aggregation.aggregation import AGGREGATIONS, Aggregation
from chimera.training.messages.message_key import merged
from chimera.training.messages.rejection import Applied, Rejected, fault
from chimera.training.optimizers.optimizer import OptimizerSettings, StepperFactory
from chimera.training.plugin import Named, named
from chimera.training.privacy.secure_sum import SecureSum
from chimera.training.privacy.settings import Privacy
from chimera.training.server.decoder import Decoder
from chimera.training.server.downlink import Downlink
from chimera.training.server.group_server import GroupServer

_EPSILON = 1e-7  # as in the paper's experiments; prevents a division by zero


class ParameterShard(GroupServer, SecureSum):
    """One parameter server.

    Parameters
    ----------
    weights : initial values of the slice, shape (p,).
    layout : layout of the slice.
    optimizer : optimizer of the slice.
    codec : name and options of the downlink's codec.
    uplink : name and options of the uplink's codec, which this process then loads.
    seed : seed of the downlink's codec and of noise.
    privacy : protection of the workers' updates, see `SecureSum`.
    memory : memory for the slice, shape (p,); by default new memory, which other members of a group read without a copy.
    """

    precision: type[np.floating[Any]] = np.float32  # of the slice
    hosted = False  # on the engine http, this actor runs in the driver, not in a node

    def __init__(
        self,
        weights: Flat,
        layout: Layout,
        *,
        optimizer: StepperFactory,
        codec: tuple[str, Mapping[str, Any]] = ("identity", {}),
        uplink: tuple[str, Mapping[str, Any]] = ("identity", {}),
        seed: int = 0,
        privacy: Privacy | None = None,
        memory: Flat | None = None,
    ) -> None:
        self._privacy, self._noise_key = privacy, seed
        shared = self.precision is np.float32  # members of a group then read it without a copy
        if memory is None:
            memory = empty(len(weights)) if shared else np.empty(len(weights), self.precision)
        self._weights = memory
        np.copyto(self._weights, weights)
        self._mean: Flat | SparseRows = np.empty_like(self._weights)
        self._scratch, self._rows = self._mean, layout.rows
        self._rule: tuple[Named, Aggregation] | None = None  # the last aggregation rule
        self._settings = optimizer = optimizer.own() if isinstance(optimizer, OptimizerSettings) else optimizer
        self._arguments = {"layout": layout, "optimizer": optimizer, "codec": codec, "uplink": uplink, "seed": seed}
        self._optimizer = optimizer.stepper(self._weights)
        self._rate: Callable[[int], float] | None = None  # learning rate of plain SGD, by step
        if isinstance(optimizer, OptimizerSettings) and optimizer.plain:
            self._rate = optimizer.learning_rate
        curvature = self._optimizer.curvature
        self._downlink = Downlink(codec, self._weights, layout, curvature=curvature, seed=seed)
        CODECS.create(*uplink)
        self._decoder = Decoder(self._weights, layout.rows)
        self._mean_square: Flat | None = None  # mean square of gradients; created when it is needed
        self._steps = 0
        self._copies: dict[int, Flat] = {}
        self._forget_rounds()
        self._beside: Flat | None = None  # the vector that workers enclose with changes, see `enclose`

    def model(self) -> Encoded:
        """Return the slice of the model to evaluate, see `Downlink.model`."""
        return self._downlink.model()

    def weights(self) -> Encoded:
        """Return the initial slice for workers, encoded like the result of `update`."""
        return self._downlink.broadcast()

    def message(self, receiver: str, session: int) -> Encoded:
        """Return the current slice for one worker, if each has messages of its own; see `Downlink.message`."""
        return self._downlink.message(receiver, session)

    def reduce_rates(self, *factors: float) -> None:
        """Set the reduction of the learning rate, the last of these factors, if the schedule is a plateau."""
        if isinstance(self._settings, OptimizerSettings):
            self._settings.schedule.reduce(factors[-1])

    def rows(self, wanted: NDArray[np.uint32]) -> Encoded:
        """Return the current rows with these ascending indices, which a worker needs next."""
        return self._downlink.rows(wanted)

    def update(
        self,
        *gradients: Encoded | Rejected,
        aggregation: Named = "mean",
        reached: bool = False,
        scale: float = 1.0,
        shares: Sequence[float] = (),
    ) -> tuple[Encoded, Applied]:
        """Take a step with the aggregate of the gradients, in the given order; return the new slice, encoded, and the outcome.

        Gradients that are rejected, not finite, or cannot be decoded are left out. Without any gradient the slice is unchanged.

        Parameters
        ----------
        gradients : one message for each participating worker.
        aggregation : name or table of the rule that replaces the mean.
        reached : the messages hold weights, not gradients. The gradient is then the slice minus their mean. If the optimizer
            only adds it with rate 1, the new slice is exactly their mean.
        scale : factor of the mean, for weighted messages of which some are missing.
        shares : weight of each message, with mean 1. If messages are left out, the mean is divided by the mean weight of the
            others.

        Raises
        ------
        ConfigurationError : the aggregation needs more gradients.
        """
        rule = self._rule_of(aggregation)
        rejected = [gradient for gradient in gradients if isinstance(gradient, Rejected)]
        given = {i: each for i, each in enumerate(gradients, 1) if not isinstance(each, Rejected)}
        messages = self._unmasked(given)
        vectors, unread = self._decoder.vectors(messages, len(gradients), self._steps, by_rows=rule.by_rows)
        rejected += unread
        # If a vector is not finite, neither is a linear aggregate. Other rules would hide it or fail.
        if vectors and not (rule.linear and self._aggregate(vectors, rule)):
            rejected += self._left_out(vectors, len(gradients), rule)
        work(elements=len(values_of(self._mean)) * len(gradients))
        contributors = len(vectors) and len(vectors) + len(given) - len(
            messages
        )  # masked gradients were summed into one message
        if vectors:
            self._add_noise(values_of(self._mean), contributors, self._steps)
        counted = [shares[i - 1] for i in (given if 0 in messages else vectors)] if shares else []
        if vectors and len(counted) < len(shares):
            scale *= len(counted) / sum(counted)
        scale = self._divided(contributors, scale)
        if vectors and scale != 1:
            mean = values_of(self._mean)
            mean *= np.float32(scale)
        if vectors and reached:
            return self._moved(contributors, rejected)
        return self._stepped(contributors, rejected)

    def combine(self, *messages: Encoded | Rejected, shares: Mapping[int, float], step: int) -> tuple[Encoded, Applied]:
        """Take a step, as `update` does, with the sum of the blocks of a step, each times its share; return the same.

        Messages have a `Key`. Of each block, one message counts, in any order of arrival; messages of other steps are ignored.
        While a block is missing that no worker has rejected, the slice is unchanged.
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
        """Add the sum of the changes, divided by ``workers``, to a vector that starts at 0, shape (p,); return the vector.

        A change that was rejected, cannot be decoded, or is not finite is left out.
        """
        if self._beside is None:
            self._beside = np.zeros_like(self._weights)
        sent = {i: change for i, change in enumerate(changes, 1) if not isinstance(change, Rejected)}
        size = self._weights.size
        read, _ = self._decoder.read(sent, len(changes), self._steps, lambda change, _: decode(change, size))
        vectors = [vector for vector in read.values() if all_finite(vector)]
        if vectors:
            total = reduce_in_order(vectors, np.empty_like(self._weights), 1 / workers)
            self._beside += total
        work(elements=self._weights.size * (len(vectors) + 1))
        return Encoded("identity", self._beside.size, (self._beside,))

    def compensate(
        self, gradient: Encoded | Rejected, then: Encoded, lambda_: float, decay: float | None = None
    ) -> tuple[Encoded, Applied]:
        """Take a step with a gradient computed at earlier weights ``then``, corrected for their change since.

        See `DelayCompensated` for the equation. With ``decay``, ``lambda_`` is divided by the root of the moving mean of the
        squared gradient. A gradient that is not finite, before or after the correction, is rejected as in `update`.
        """
        if isinstance(gradient, Rejected):
            return self._stepped(0, [gradient])
        try:
            given, mean_square = self._decoder.vector(gradient, 0), self._mean_square
        except CodecError as error:
            return self._stepped(0, [Rejected(None, self._steps, f"the gradient cannot be read: {error}")])
        with np.errstate(over="ignore", invalid="ignore"):
            correction = self._weights - self._downlink.vector(then)
            correction *= np.float32(lambda_)
            square = np.square(given)
            correction *= square
            if decay is not None:
                square *= np.float32(1 - decay)
                if mean_square is not None:
                    square += mean_square * np.float32(decay)
                mean_square = square
                correction /= np.sqrt(mean_square + np.float32(_EPSILON))
            corrected = np.add(given, correction, out=self._scratch)
        work(elements=self._weights.size * 2)
        if not all_finite(corrected):
            reason = fault(given, "the gradient") or fault(corrected, "the corrected gradient")
            return self._stepped(0, [Rejected(None, self._steps, reason)])
        self._mean, self._mean_square = corrected, mean_square
        return self._stepped(1, [])

    def _rule_of(self, aggregation: Named) -> Aggregation:
        if self._rule is None or self._rule[0] != aggregation:
            self._rule = aggregation, AGGREGATIONS.create(*named(aggregation))
        return self._rule[1]

    def _aggregate(self, vectors: Mapping[int, Any], rule: Aggregation) -> bool:
        """Set the aggregate; return whether it is finite."""
        given = list(vectors.values())
        rule.check(len(given))
        by_rows = isinstance(given[0], SparseRows)
        self._mean = rule.sparse(given, self._rows) if by_rows else rule.dense(given, self._scratch, self._rows)
        return all_finite(values_of(self._mean))

    def _left_out(self, vectors: dict[int, Any], total: int, rule: Aggregation) -> list[Rejected]:
        """Remove vectors that are not finite, aggregate the others, and return the rejections."""
        faults = {i: fault(values_of(vector), f"gradient {i} of {total}") for i, vector in vectors.items()}
        for i in [i for i, reason in faults.items() if reason]:
            del vectors[i]
        found = [reason for reason in faults.values() if reason]
        if vectors and not self._aggregate(vectors, rule):
            found.append(f"the sum of {len(vectors)} gradients overflows")
            vectors.clear()
        return [Rejected(None, self._steps, reason) for reason in found]

    def _moved(self, contributors: int, rejected: Sequence[Rejected]) -> tuple[Encoded, Applied]:
        """Step towards the mean of the workers' weights; exactly to it if the optimizer is SGD with rate 1."""
        mean = self._rows.filled(self._mean) if isinstance(self._mean, SparseRows) else self._mean
        if self._rate is None or self._rate(self._steps) != 1:
            self._mean = np.subtract(self._weights, mean, out=mean)
            return self._stepped(contributors, rejected)
        np.copyto(self._weights, mean)
        self._steps += 1
        return self._downlink.broadcast(), Applied(self._steps, contributors, tuple(rejected))

    def _stepped(self, gradients: int, rejected: Sequence[Rejected]) -> tuple[Encoded, Applied]:
        """Step with the aggregate, if there is any gradient; return the new slice and the outcome."""
        if gradients:
            if isinstance(self._mean, SparseRows):
                self._optimizer.step_rows(self._mean, self._rows, self._steps)
            else:
                self._optimizer.step(self._mean, self._steps)
            self._steps += 1
        applied = Applied(self._steps, gradients, tuple(rejected), self._mechanism(gradients))
        return self._downlink.broadcast(), applied

    def state(self) -> dict[str, Any]:
        """Return the state: weights, optimizer, step, codec."""
        return {
            "step": self._steps,
            "weights": self._weights,
            "optimizer": self._optimizer.state(),
            "mean_square": self._mean_square,
            "codec": self._downlink.state(),
            "beside": self._beside,
        }

    def lend(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the settings of this server, and its state, for a worker that steps the slice in its own process."""
        return self._arguments, self.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned.

        Raises
        ------
        ConfigurationError : the state belongs to a slice of another size.
        """
        if (held := len(state["weights"])) != self._weights.size:
            raise ConfigurationError(
                f"the checkpoint has a server with {held} parameters, but the server has {self._weights.size} now: an older "
                "version wrote it, which split shards within rows; start a new run, or resume with that version"
            )
        self._forget_rounds()
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
    """Return all elements that may differ from zero."""
    return vector.values if isinstance(vector, SparseRows) else vector

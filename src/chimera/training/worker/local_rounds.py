"""Rounds of local steps, and parameters that stay with a worker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from chimera.codecs.codec import decode
from chimera.core.call import work
from chimera.core.device import copy_of, on_host, to_device_of, to_host
from chimera.core.errors import ConfigurationError
from chimera.core.low_rank import rank_factors
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, all_finite
from chimera.data.dataset import TrainingData
from chimera.models.model import Model
from chimera.training.messages.rejection import Rejected, fault
from chimera.training.messages.tally import Tally
from chimera.training.nodes_data.evaluation import Measured
from chimera.training.privacy.settings import Privacy
from chimera.training.worker.exchange import Exchange
from chimera.training.worker.extension import Extensions
from chimera.training.worker.gradients import Gradients
from chimera.training.worker.last_result import LastResult, Result, copies_of, times
from chimera.training.worker.local_training import RULE, LocalTraining
from chimera.training.worker.shared_parameters import SharedParameters
from chimera.training.worker.side_by_side import SideBySide

_PERSONAL = "personal"  # key of the personal parameters in a state
PLACE = "place in the data"  # key of the place in data that is read in sequence
_SCALE = "loss scale"  # key of the loss scale of float16 in a worker's local state


class LocalRounds:
    """The part of a `Learner` that takes local steps between two messages to its servers."""

    _rank: int
    _step: int
    _model: Model
    _device_model: Any
    _dataset: TrainingData
    _gradients: Gradients
    _exchange: Any
    _part: SharedParameters | None
    _local: LocalTraining
    _last: LastResult
    _tally: Tally
    _privacy: Privacy | None
    _side_by_side: SideBySide | None
    _extensions: Extensions

    def _load(self, weights: Sequence[Encoded]) -> tuple[Any, Any]:
        raise NotImplementedError

    def _packed(self, flat: Flat) -> list[Encoded]:
        raise NotImplementedError

    def _private(self, update: Any, number: int) -> list[Encoded]:
        raise NotImplementedError

    def _falsified_weights(self, begun: Any, reached: Any, step: int) -> None:
        raise NotImplementedError

    def delta(
        self,
        *weights: Encoded,
        steps: int,
        first: int | None = None,
        keep_state: bool = True,
        weight: float | None = None,
        reached: bool = False,
        clock: int | None = None,
        rule: Mapping[str, Any] | None = None,
        round_: int | None = None,
        shares: Sequence[float] | None = None,
    ) -> list[Encoded] | list[Rejected]:
        """Load the weights, take ``steps`` local steps, and return the change, encoded, one message for each shard.

        The change is the received weights minus the new ones, so that a server can apply it like a gradient. If a gradient is
        not finite, the local steps stop and the messages are `Rejected`. If a round is repeated because another worker was
        lost, the worker sends its earlier change; optimizer and data advance only once.

        Parameters
        ----------
        first : index of the first of these steps; by default the next one.
        keep_state : keep the local optimizer's state for the next call.
        weight : factor of the change. A call that repeats the round may have another one. Default: 1, also in that call.
        reached : send the new weights instead of the change.
        clock : position in the local optimizer's schedule for all these steps; by default the index of each step.
        rule : name and options of a `LocalRule`. If the rule encloses a vector, the vector follows the weights, and another
            follows the change, one message for each shard too.
        round_ : index of the round; None: no later call repeats this one.
        shares : factor of the change of each rank of low-rank adapters. Further ranks are 0 and do not change. Default: all are
            1.
        """
        local, messages = self._local.follow(rule), len(weights)
        shards = messages // 2 if local is not None and local.encloses else messages
        flat, begin = self._load(weights[:shards])
        factors = None if shares is None else self._factors_of(shares, flat)
        if factors is not None:
            flat *= factors != 0
        if begin is None or factors is not None:
            begin = copy_of(flat)
        first = self._step if first is None else first
        asked = steps, weight is None, None if shares is None else [share != 0 for share in shares]
        if (earlier := self._last.to(round_, asked)) is not None:
            self._step = first + steps
            return self._repeated(earlier, (weight, shares), factors, messages, first)
        if local is not None:
            local.begin(begin, self._enclosed(weights[shards:], flat))
        rejected: Rejected | None = None
        beside_it: list[Encoded] = []
        with np.errstate(over="ignore", invalid="ignore"):  # checked below
            if self._side_by_side is None or not self._stepped_beside(first, steps, clock, begin, flat):
                for self._step in range(first, first + steps):
                    found = self._local_step(self._step if clock is None else clock)
                    if found is None:
                        continue
                    rejected = found
                    if self._privacy is None:
                        break
                    flat[:] = begin  # all steps are taken: the number of rows read would reveal which batch is at fault
            if local is not None and rejected is None:
                beside_it = self._enclosure(local.end())
            self._falsified_weights(begin, flat, first)
            change = copy_of(flat) if reached else begin - flat
            sent = times(change, weight, factors)
        self._step = first + steps
        if not keep_state:
            self._local.forget()
        work(elements=len(flat) * (steps + 1))
        rejected = rejected or self._overflow(sent, first)
        if rejected is not None:
            if self._privacy is not None:  # its step would reveal which batch is at fault
                rejected = Rejected(self._rank, first, rejected.why)
            return [rejected] * messages
        if self._privacy is not None:
            return self._private(sent, first)  # private strategies enclose no vector
        result = Result(round_, asked, (weight, shares), beside_it)
        if round_ is not None and (weight, shares) != (None, None):
            result = result._replace(change=change, codecs=copies_of(self._exchange.states()))
        return self._sent(sent, result)

    def _repeated(self, earlier: Result, factors: Any, by_element: Any, messages: int, first: int) -> list[Any]:
        """Return the messages of an earlier result, with these factors; the codecs' state is as if no others had been sent."""
        if factors == earlier.factors:
            self._tally.sent(earlier.messages)
            return earlier.messages
        sent = times(earlier.change, factors[0], by_element)
        if (rejected := self._overflow(sent, first)) is not None:
            return [rejected] * messages
        self._exchange.restore(earlier.codecs)
        self._tally.sent(earlier.beside)
        return self._sent(sent, earlier._replace(factors=factors))

    def _sent(self, sent: Any, result: Result) -> list[Encoded]:
        """Return the messages of a vector and of a result, and keep the result with them."""
        if on_host(sent):
            sent.flags.writeable = False  # it does not change any more, so a message need not copy it
        messages = [*self._packed(sent), *result.beside]
        self._last.keep(result._replace(messages=messages))
        return messages

    def _overflow(self, sent: Any, first: int) -> Rejected | None:
        """Return the rejection of a change that is not finite."""
        return None if all_finite(sent) else Rejected(self._rank, first, fault(sent, "the change of the weights"))

    def forget_answer(self) -> None:
        """Discard the last result, and the state of the local rule, since the run returns to a snapshot."""
        self._last.forget()
        self._local.forget_rule()

    def local_state(self) -> Mapping[str, Any]:
        """Return the state of the local optimizer, the personal parameters, and the local states of worker extensions.

        If the data is read in sequence, its state is part of the result, except in private runs.
        """
        own: dict[str, Any] = {} if self._part is None else {_PERSONAL: self.personal()}
        if self._privacy is None and (place := self._gradients.place()):
            own[PLACE] = place
        if self._privacy is None and (scale := _loss_scale(self._model)) is not None:
            own[_SCALE] = scale
        return {**self._local.state(), **own, **self._extensions.local_state()}

    def momenta(self) -> Mapping[str, Any]:
        """Return the state of the local optimizer, for a worker that joins."""
        return self._local.momenta()

    def remembers(self) -> bool:
        """Return whether the worker has state that no other worker has: its rule's, or personal parameters."""
        return self._part is not None or bool(self._local.ruled())

    def take_over(self, momenta: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
        """Replace a lost worker, with the momenta of another worker and the lost worker's own local state.

        ``own`` is an earlier `local_state` of the lost worker, or empty. Return whether it held state that no other worker has.
        """
        known = {key: value for key, value in own.items() if key == _PERSONAL or key.startswith(RULE)}
        self.restore_local({**momenta, **known, **{key: own[key] for key in (PLACE,) if key in own}})
        return bool(known)

    def restore_local(self, state: Mapping[str, Any]) -> None:
        """Restore what `local_state` returned."""
        rest = self._extensions.restore_local(state)
        self._local.restore({key: value for key, value in rest.items() if key not in (_PERSONAL, PLACE, _SCALE)})
        if PLACE in state:
            self._gradients.continue_at(state[PLACE])
        if _SCALE in state and hasattr(self._model, "restore_loss_scale"):
            self._model.restore_loss_scale(state[_SCALE])
        if self._part is not None and _PERSONAL in state:
            self._part.put_rest(state[_PERSONAL], self._model.parameters())

    def personal(self) -> Flat:
        """Return the personal parameters."""
        assert self._part is not None
        return np.asarray(self._part.rest(self._model.parameters()))

    def evaluate(self, *weights: Encoded) -> dict[str, float]:
        """Return loss and metrics of these weights on the worker's own rows. The worker's model is unchanged.

        If workers keep rows for their evaluation, the rows are those. A worker with a single row keeps and returns none.
        Personal parameters are the worker's own; without ``weights``, all parameters are.

        Raises
        ------
        ConfigurationError : the data has no rows that belong to this worker.
        """
        rows = getattr(self._gradients.order, "own", None)
        if rows is None:
            raise ConfigurationError("evaluate_clients needs a data set in rows, with rows for each worker")
        own = getattr(self._gradients.order, "kept", None)
        own = rows() if own is None else own
        if not len(own):
            return {}
        with self._evaluated(weights):
            return self._model.evaluate(self._dataset.whole(own))

    def measure(self, *weights: Encoded) -> Measured:  # noqa: ARG002 - of nodes that have test rows
        """Return sums of loss and metrics of these weights over the test rows of a node; see `NodesEvaluation`.

        Raises
        ------
        ConfigurationError : this worker is not at a node that has data and test rows of its own.
        """
        raise ConfigurationError("this worker has no test rows of its own: evaluate the model on the driver's test set")

    @contextmanager
    def _evaluated(self, weights: Sequence[Encoded]) -> Iterator[None]:
        """Load these weights, if there are any, inside the block. Personal parameters are the worker's own."""
        kept = self._model.parameters().copy()
        if weights:
            given = np.concatenate([decode(message, message.size) for message in weights])
            if self._part is None:
                self._model.load(given)
            else:
                self._part.put(given, self._model.parameters())
        try:
            yield
        finally:
            self._model.load(kept)

    def _local_step(self, clock: int) -> Rejected | None:
        """Take a local step; return the rejection if the gradient is not finite."""
        if self._local.descends:
            return self._gradients.descend(lambda batch: self._local.descend(batch, clock), self._step)
        gradient, rejected = self._gradients.next(self._device_model, self._step)
        if rejected is None:
            self._local.step(gradient, clock)
        return rejected

    def _stepped_beside(self, first: int, steps: int, clock: int | None, begin: Flat, flat: Flat) -> bool:
        """Take all local steps with other workers of this process, if they can; return whether they were taken."""
        if self._side_by_side is None or self._gradients.flips_labels:
            return False
        rates = self._local.rates([number if clock is None else clock for number in range(first, first + steps)])
        reached = self._side_by_side.steps_of(self._rank, first, rates, begin) if rates else None
        if reached is None:
            return False
        flat[:] = reached.weights
        self._gradients.count(reached.losses)
        return True

    def _factors_of(self, shares: Sequence[float], flat: Any) -> Any:
        """Return the factors of these shares of ranks, on the device of ``flat``."""
        return to_device_of(rank_factors(self._model.layout, shares), flat)

    def _enclosed(self, messages: Sequence[Encoded], flat: Any) -> Any:
        """Return the vector that followed the weights, on their device; None if there is none."""
        if not messages:
            return None
        self._tally.got(messages)
        return to_device_of(np.concatenate([decode(message, message.size) for message in messages]), flat)

    def _enclosure(self, flat: Any) -> list[Encoded]:
        """Return the messages of a vector that follows the change, in float32 whatever the codec; none for None."""
        if flat is None:
            return []
        assert isinstance(self._exchange, Exchange)  # strategies that enclose vectors do not go by rows
        messages = [Encoded("identity", len(piece), (piece,)) for piece in self._exchange.pieces(to_host(flat))]
        self._tally.sent(messages)
        return messages


def _loss_scale(model: Any) -> Any:
    """Return the state of a model's loss scale; None if it has none."""
    scale = getattr(model, "loss_scale", None)
    return None if scale is None else scale()

"""What a worker does in a round of local steps, and what of the model stays with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from chimera.codecs.codec import decode
from chimera.core.call import work
from chimera.core.device import beside, copy_of, on_host, to_host
from chimera.core.errors import ConfigurationError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, all_finite
from chimera.data.dataset import Dataset
from chimera.models.model import Model
from chimera.training.messages.rejection import Rejected, fault
from chimera.training.messages.tally import Tally
from chimera.training.privacy.settings import Privacy
from chimera.training.worker.exchange import Exchange
from chimera.training.worker.gradients import Gradients
from chimera.training.worker.last_result import LastResult
from chimera.training.worker.local_training import RULE, LocalTraining
from chimera.training.worker.shared_parameters import SharedParameters

_PERSONAL = "personal"  # under which parameters that stay here are in a state


class LocalRounds:
    """The part of a `Learner` that trains by itself between two messages of its servers."""

    _rank: int
    _step: int
    _model: Model
    _near: Any
    _dataset: Dataset
    _gradients: Gradients
    _exchange: Any
    _part: SharedParameters | None
    _local: LocalTraining
    _last: LastResult
    _tally: Tally
    _privacy: Privacy | None

    def _load(self, weights: Sequence[Encoded]) -> tuple[Any, Any]:
        raise NotImplementedError

    def _packed(self, flat: Flat) -> list[Encoded]:
        raise NotImplementedError

    def _private(self, update: Any, number: int) -> list[Encoded]:
        raise NotImplementedError

    def _pretend(self, begun: Any, reached: Any, step: int) -> None:
        raise NotImplementedError

    def delta(
        self,
        *weights: Encoded,
        steps: int,
        first: int | None = None,
        keep_state: bool = True,
        weight: float = 1.0,
        reached: bool = False,
        clock: int | None = None,
        rule: Mapping[str, Any] | None = None,
        round_: int | None = None,
    ) -> list[Encoded] | list[Rejected]:
        """Load the weights, take ``steps`` local steps from there, and return the way back, encoded, a message a shard.

        That is the weights given less those reached: a server that takes it for a gradient moves towards what was learnt.
        The first gradient that is not finite ends it, and the messages say so instead. Who is asked for the same round again,
        because another died in it, says again what it said, and has its optimizer and its data go on from there once.

        Parameters
        ----------
        first : the number of the first of these steps; without it, one more than the last.
        keep_state : whether the local optimizer remembers it all for the next call.
        weight : what is sent is multiplied by this.
        reached : whether the weights that were reached are sent instead.
        clock : by what a schedule of the local optimizer goes in all these steps; by default by the number of each.
        rule : name and options of what changes gradients, see `LocalRule`. Where it encloses a vector, that comes behind the
            weights, and another goes behind the change, a message a shard too.
        round_ : the number of the round; without it, no two calls are the same.
        """
        local, messages = self._local.follow(rule), len(weights)
        shards = messages // 2 if local is not None and local.encloses else messages
        flat, begin = self._load(weights[:shards])
        if begin is None:
            begin = copy_of(flat)
        first, asked = self._step if first is None else first, (steps, weight)
        if (answer := self._last.to(round_, asked)) is not None:
            self._step = first + steps
            self._tally.sent(answer)
            return answer
        if local is not None:
            local.begin(begin, self._enclosed(weights[shards:], flat))
        rejected: Rejected | None = None
        beside_it: list[Encoded] = []
        with np.errstate(over="ignore", invalid="ignore"):  # what became of it is looked at below
            for self._step in range(first, first + steps):
                rejected = self._local_step(self._step if clock is None else clock)
                if rejected is not None:
                    break
            if local is not None and rejected is None:
                beside_it = self._enclosure(local.end())
            self._pretend(begin, flat, first)
            sent = copy_of(flat) if reached else begin - flat
            if weight != 1:
                sent *= np.float32(weight)
        self._step = first + steps
        if not keep_state:
            self._local.forget()
        work(elements=len(flat) * (steps + 1))
        if rejected is None and not all_finite(sent):
            rejected = Rejected(self._rank, first, fault(sent, "the change of the weights"))
        if rejected is not None:
            return [rejected] * messages
        if self._privacy is not None:
            return self._private(sent, first)  # strategies that are private enclose no vector
        if on_host(sent):
            sent.flags.writeable = False  # nobody writes to it any more, so that a message need not copy it
        answer = [*self._packed(sent), *beside_it]
        self._last.keep(round_, asked, answer)
        return answer

    def forget_answer(self) -> None:
        """Forget what it last answered: the run goes back."""
        self._last.forget()

    def local_state(self) -> Mapping[str, Any]:
        """Return what its local optimizer remembers, and the parameters that stay here."""
        own = {} if self._part is None else {_PERSONAL: self.personal()}
        return {**self._local.state(), **own}

    def momenta(self) -> Mapping[str, Any]:
        """Return what its local optimizer remembers, for a newcomer."""
        return self._local.momenta()

    def remembers(self) -> bool:
        """Return whether it knows what no other worker can: what its rule remembers, or parameters that stay here."""
        return self._part is not None or bool(self._local.ruled())

    def take_over(self, momenta: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
        """Begin in the place of a lost worker, with the momenta of another and what that one alone knew.

        ``own`` is what its `local_state` was at some time, or nothing. Returns whether there was any of that in it.
        """
        known = {key: value for key, value in own.items() if key == _PERSONAL or key.startswith(RULE)}
        self.restore_local({**momenta, **known})
        return bool(known)

    def restore_local(self, state: Mapping[str, Any]) -> None:
        """Take back what `local_state` returned."""
        self._local.restore({key: value for key, value in state.items() if key != _PERSONAL})
        if self._part is not None and _PERSONAL in state:
            self._part.put_rest(state[_PERSONAL], self._model.parameters())

    def personal(self) -> Flat:
        """Return the parameters that stay here."""
        assert self._part is not None
        return np.asarray(self._part.rest(self._model.parameters()))

    def evaluate(self, *weights: Encoded) -> dict[str, float]:
        """Return loss and metrics, on its own rows, of its model with these weights, which it then gives back.

        What stays here is its own; without weights it all is.

        Raises
        ------
        ConfigurationError : what it reads has no rows that are its own.
        """
        rows = getattr(self._gradients.order, "own", None)
        if rows is None:
            raise ConfigurationError("evaluate_clients needs data in rows, of which each worker has its own")
        kept = self._model.parameters().copy()
        if weights:
            given = np.concatenate([decode(message, message.size) for message in weights])
            if self._part is None:
                self._model.load(given)
            else:
                self._part.put(given, self._model.parameters())
        metrics = self._model.evaluate(self._dataset.take(rows()))
        self._model.load(kept)
        return metrics

    def _local_step(self, clock: int) -> Rejected | None:
        """Step with this step's batch, or say why its gradient is rejected."""
        if self._local.descends:
            return self._gradients.descend(lambda batch: self._local.descend(batch, clock), self._step)
        gradient, rejected = self._gradients.next(self._near, self._step)
        if rejected is None:
            self._local.step(gradient, clock)
        return rejected

    def _enclosed(self, messages: Sequence[Encoded], flat: Any) -> Any:
        """Return the vector that came behind the weights, where these lie; or None."""
        if not messages:
            return None
        self._tally.got(messages)
        return beside(np.concatenate([decode(message, message.size) for message in messages]), flat)

    def _enclosure(self, flat: Any) -> list[Encoded]:
        """Return a vector, if there is one, as it goes behind a change: as it is, whatever the codec."""
        if flat is None:
            return []
        assert isinstance(self._exchange, Exchange)  # strategies that enclose vectors do not go by rows
        messages = [Encoded("identity", len(piece), (piece,)) for piece in self._exchange.pieces(to_host(flat))]
        self._tally.sent(messages)
        return messages

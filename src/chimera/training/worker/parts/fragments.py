"""A replica that goes on from one exchange to the next, and is shared with the servers a fragment at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from chimera.core.call import work
from chimera.core.device import beside, copy_of, put, to_host
from chimera.core.message import Encoded
from chimera.training.messages.rejection import Rejected, fault
from chimera.training.worker.exchange import Exchange
from chimera.training.worker.local_rounds import LocalRounds

_KEYS = _REFERENCE, _REPLICA, _NUMBERS = "fragments.reference", "fragments.replica", "fragments.numbers"  # in a state


class Fragments(LocalRounds):
    """The part of a `Learner` that does so, as in streaming DiLoCo (Douillard et al. 2025); a fragment is what one server has.

    Beside the replica it holds the reference: of each fragment, the newest global values that it got. What it sends is the way
    from its replica back to the reference.
    """

    _reference: Any = None  # shape (P,), where the model computes; None as long as there is no replica
    _stands_at = -1  # the number of the local step that comes next for the replica
    _spoilt: Rejected | None = None

    def _falsify(self, vector: Any, step: int) -> None:
        """See `Attacker`."""
        raise NotImplementedError

    def stands_at(self) -> int:
        """Return the number of the step that comes next for its replica; -1 if it has none."""
        return self._stands_at

    def enter(self, *weights: Encoded, step: int) -> None:
        """Begin with the global weights, a message a server; ``step`` is the number of the first local step from there."""
        self._load(weights)
        self._reference, self._stands_at = copy_of(self._near.parameters()), step

    def advance(self, steps: int) -> None:
        """Take so many local steps from where the replica stands. What is not finite ends them; the next `stream` tells."""
        with np.errstate(over="ignore", invalid="ignore"):  # what became of it is looked at when it is sent
            for step in range(self._stands_at, self._stands_at + steps):
                self._step = step
                self._spoilt = self._spoilt or self._local_step(self._step)
        self._stands_at += steps
        self._step = self._stands_at
        work(elements=len(self._reference) * steps)

    def stream(self, *news: Encoded, of: int, sends: int, steps: int, alpha: float = 0.0) -> Encoded | Rejected:
        """Mix in new global values of a fragment, take ``steps`` local steps, and return the way back of another, encoded.

        A replica that is not finite is given up for the reference; its optimizer goes on.

        Parameters
        ----------
        news : the weights of server ``of``, or nothing.
        sends : the fragment whose way back is returned: the reference less the replica.
        alpha : how much of the replica stays where new values come in, 0 to 1.
        """
        exchange, flat = self._parted(), self._near.parameters()
        for message in news:
            self._tally.got(news)
            replica, reference = exchange.pieces(flat)[of], exchange.pieces(self._reference)[of]
            exchange.unpack(of, message, reference)
            _mix(replica, reference, alpha)
        self.advance(steps)
        change = copy_of(exchange.pieces(self._reference)[sends])
        with np.errstate(over="ignore", invalid="ignore"):
            change -= exchange.pieces(flat)[sends]
        self._falsify(change, self._stands_at)
        rejected, self._spoilt = self._spoilt, None
        if rejected is None and (why := fault(change, "the change of the weights")):
            rejected = Rejected(self._rank, self._stands_at, why)
        if rejected is not None:
            flat[:] = self._reference
            return rejected
        message = exchange.pack(sends, change)
        self._tally.sent([message])
        return message

    def _parted(self) -> Exchange:
        assert isinstance(self._exchange, Exchange)  # strategies that exchange fragments do not go by rows
        return self._exchange

    def local_state(self) -> Mapping[str, Any]:
        """Return what `LocalRounds` remembers, and replica and reference, if there are any."""
        if self._reference is None:
            return super().local_state()
        return {
            **super().local_state(),
            _REFERENCE: to_host(copy_of(self._reference)),
            _REPLICA: to_host(copy_of(self._near.parameters())),
            _NUMBERS: np.array([self._stands_at, self._parted().shards]),
        }

    def restore_local(self, state: Mapping[str, Any]) -> None:
        """Take back what `local_state` returned."""
        super().restore_local({key: value for key, value in state.items() if key not in _KEYS})
        if _REFERENCE not in state:
            self._reference, self._stands_at = None, -1
            return
        flat = self._near.parameters()
        put(state[_REPLICA], flat)
        self._reference = copy_of(beside(state[_REFERENCE], flat))
        self._stands_at, shards = state[_NUMBERS].tolist()
        self._parted().cut(shards)


def _mix(replica: Any, reference: Any, alpha: float) -> None:
    """Leave ``alpha`` of the replica where it is; with 0 it becomes the reference to the bit."""
    if alpha == 0:
        replica[:] = reference
        return
    with np.errstate(over="ignore", invalid="ignore"):
        replica *= np.float32(alpha)
        replica += reference * np.float32(1 - alpha)

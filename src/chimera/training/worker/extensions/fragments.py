"""Calls of workers that keep a replica between exchanges, and exchange one fragment of it at a time with servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from chimera.core.call import work
from chimera.core.device import copy_of, copy_to, to_device_of, to_host
from chimera.core.message import Encoded
from chimera.training.messages.rejection import Rejected, fault
from chimera.training.worker.exchange import Exchange
from chimera.training.worker.extension import WorkerExtension, worker_extension

_REFERENCE, _REPLICA, _NUMBERS = "reference", "replica", "numbers"  # keys in a state


@worker_extension("fragments")
class Fragments(WorkerExtension):
    """The calls of streaming DiLoCo (Douillard et al. 2025): a replica that exchanges one fragment of the weights at a time.

    A fragment is the shard of one server. The worker holds the replica and the reference: the newest global values that it
    received of each fragment. The worker sends the reference minus the replica.
    """

    _reference: Any = None  # shape (P,), on the device of the model; None while there is no replica
    _next_step = -1  # index of the next local step of the replica
    _rejected: Rejected | None = None

    def stands_at(self) -> int:
        """Return the index of the next local step of the replica; -1 if there is none."""
        return self._next_step

    def enter(self, *weights: Encoded, step: int) -> None:
        """Start the replica from the global weights, a message for each server; ``step`` is the index of its next step."""
        self.worker.load(weights)
        self._reference, self._next_step = copy_of(self.worker.device_model.parameters()), step

    def advance(self, steps: int) -> None:
        """Take ``steps`` local steps of the replica. A gradient that is not finite stops them; the next `stream` reports it."""
        with np.errstate(over="ignore", invalid="ignore"):  # checked when it is sent
            for step in range(self._next_step, self._next_step + steps):
                self.worker.step = step
                self._rejected = self._rejected or self.worker.local_step(self.worker.step)
        self._next_step += steps
        self.worker.step = self._next_step
        work(elements=len(self._reference) * steps)

    def stream(self, *new_weights: Encoded, of: int, sends: int, steps: int, alpha: float = 0.0) -> Encoded | Rejected:
        """Mix in new values of a fragment, take ``steps`` local steps, and return the change of another fragment, encoded.

        A replica that is not finite is replaced by the reference; its optimizer continues.

        Parameters
        ----------
        new_weights : the weights of server ``of``, or none.
        sends : the fragment whose change is returned: the reference minus the replica.
        alpha : weight of the replica where new values are mixed in, 0 to 1.
        """
        exchange, flat = self._parted(), self.worker.device_model.parameters()
        for message in new_weights:
            self.worker.tally.got(new_weights)
            replica, reference = exchange.pieces(flat)[of], exchange.pieces(self._reference)[of]
            exchange.unpack(of, message, reference)
            _mix(replica, reference, alpha)
        self.advance(steps)
        change = copy_of(exchange.pieces(self._reference)[sends])
        with np.errstate(over="ignore", invalid="ignore"):
            change -= exchange.pieces(flat)[sends]
        self.worker.falsify(change, self._next_step)
        rejected, self._rejected = self._rejected, None
        if rejected is None and (reason := fault(change, "the change of the weights")):
            rejected = Rejected(self.worker.rank, self._next_step, reason)
        if rejected is not None:
            flat[:] = self._reference
            return rejected
        message = exchange.pack(sends, change)
        self.worker.tally.sent([message])
        return message

    def _parted(self) -> Exchange:
        assert isinstance(self.worker.exchange, Exchange)  # strategies that exchange fragments do not exchange rows
        return self.worker.exchange

    def local_state(self) -> Mapping[str, Any]:
        """Return the replica and its reference, if there are any."""
        if self._reference is None:
            return {}
        return {
            _REFERENCE: to_host(copy_of(self._reference)),
            _REPLICA: to_host(copy_of(self.worker.device_model.parameters())),
            _NUMBERS: np.array([self._next_step, self._parted().shards]),
        }

    def restore_local(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `local_state` returned."""
        if _REFERENCE not in state:
            self._reference, self._next_step = None, -1
            return
        flat = self.worker.device_model.parameters()
        copy_to(state[_REPLICA], flat)
        self._reference = copy_of(to_device_of(state[_REFERENCE], flat))
        self._next_step, shards = state[_NUMBERS].tolist()
        self._parted().cut(shards)


def _mix(replica: Any, reference: Any, alpha: float) -> None:
    """Mix replica and reference with the weight ``alpha`` for the replica; with 0 it becomes an exact copy of the reference."""
    if alpha == 0:
        replica[:] = reference
        return
    with np.errstate(over="ignore", invalid="ignore"):
        replica *= np.float32(alpha)
        replica += reference * np.float32(1 - alpha)

"""Service of a group of workers: many steps in one call, without the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from chimera.core import call
from chimera.core.engine import Group
from chimera.core.message import Encoded
from chimera.core.parameters import Flat
from chimera.training.messages.end_of_call import END_OF_CALL, LEAVES
from chimera.training.messages.rejection import Applied, Rejected, Served

Named: TypeAlias = str | Mapping[str, Any]


class GroupServer:
    """The part of a `ParameterShard` that steps with the gradients of a group.

    In a synchronous step, the server sends its weights to all workers, waits for their gradients, and updates its slice. The
    result has the same bits as with a call of `update` for each step. A message of None ends the exchange: a worker that fails
    sends it to the servers. A server sends it to all workers if it fails, or if they have no gradient for it.
    """

    _message: Encoded | None = None  # the message that workers receive next
    _round: int | None = None  # rounds of the run that this server has completed; None if it has not served a group
    _rejecting: dict[int, Applied]  # not reported yet
    _staleness: list[int]
    _left: Group | None = None  # a group whose exchange has ended
    _copies: dict[int, Flat]  # copies of the slice, by the worker that reads them

    def weights(self) -> Encoded:
        """See `ParameterShard.weights`."""
        raise NotImplementedError

    def update(self, *gradients: Encoded | Rejected, aggregation: Named = "mean") -> tuple[Encoded, Applied]:
        """See `ParameterShard.update`."""
        raise NotImplementedError

    def rounds_served(self) -> int | None:
        """Return how many rounds of the run this server has completed; None if only the driver knows."""
        return self._round

    def serve(
        self,
        rounds: int,
        group: Group,
        workers: Sequence[int],
        *,
        first: int,
        fresh: bool = False,
        aggregation: Named = "mean",
    ) -> Served:
        """Take a step with the gradients of ``workers``, given by rank in the group, in each of ``rounds`` rounds.

        Parameters
        ----------
        first : number of rounds of the run that are complete.
        fresh : encode the weights, as `weights` does; otherwise workers first receive the message of the last update.
        aggregation : see `update`.

        Raises
        ------
        ActorLost : a member of the group died. `rounds_served` returns the number of complete rounds.
        """
        if not self._begins(group, fresh):
            return Served({})
        self._round = first
        for left in range(rounds, 0, -1):
            began_s = call.now()
            if left == rounds:
                group.send(dict.fromkeys(workers, self._message))
            gradients = list(group.receive(workers).values())
            if LEAVES in gradients:
                self._leave(group, workers)
                break
            applied = self._step(gradients, group, workers, aggregation=aggregation)
            self._count(applied)
            none = not applied.gradients and all(isinstance(gradient, Rejected) for gradient in gradients)
            if none:
                self._leave(group, workers)
            elif left > 1:  # at once: the workers wait
                group.send(dict.fromkeys(workers, self._message))
            call.record("update", began_s)
            if none:
                break
        return self._outcome()

    def serve_each(
        self, rounds: int, group: Group, workers: Sequence[int], *, first: int, fresh: bool = False
    ) -> Served:
        """Take a step with each gradient on arrival, ``rounds`` in all, and send the new weights to its worker.

        The parameters are those of `serve`. The outcome has the staleness of each gradient. There must be no other server.

        Raises
        ------
        ActorLost : a member of the group died. `rounds_served` returns the number of complete rounds.
        """
        if not self._begins(group, fresh):
            return Served({})
        self._round = first
        read: dict[int, int] = {}  # by busy worker, in the order of their starts: the round of its weights
        for worker in workers:
            self._begin(worker, group, read, first + rounds)
        while self._round < first + rounds:
            began_s = call.now()
            [(worker, gradient)] = group.receive(list(read), 1).items()
            if gradient is LEAVES:
                self._leave(group, list(read), [other for other in read if other != worker])
                return self._outcome()
            applied = self._step([gradient], group, list(read), [other for other in read if other != worker])
            self._staleness.append(self._round - read.pop(worker))
            self._count(applied)
            self._begin(worker, group, read, first + rounds)
            call.record("update", began_s)
        group.receive(workers)
        return self._outcome()

    def _forget_rounds(self) -> None:
        """Forget the number of served rounds: the slice now belongs to another round."""
        self._round, self._rejecting, self._staleness = None, {}, []

    def _begins(self, group: Group, fresh: bool) -> bool:
        """Prepare the first message of a call; return False if the exchange of the group has ended."""
        if self._left is group:
            return False
        if fresh:
            self._message = self.weights()
        return True

    def _count(self, applied: Applied) -> None:
        """Count a complete round."""
        assert self._round is not None
        if applied.rejected:
            self._rejecting[self._round] = applied
        self._round += 1

    def _outcome(self) -> Served:
        """Return the outcome of the rounds since the last call that returned it; a call that a loss interrupts does not."""
        outcome = Served(self._rejecting, tuple(self._staleness))
        self._rejecting, self._staleness = {}, []
        return outcome

    def _step(
        self,
        gradients: Sequence[Any],
        group: Group,
        workers: Sequence[int],
        busy: Sequence[int] = (),
        *,
        aggregation: Named = "mean",
    ) -> Applied:
        """Update the slice; if that fails, end the exchange."""
        try:
            self._message, applied = self.update(*gradients, aggregation=aggregation)
        except BaseException:
            self._leave(group, workers, busy)
            raise
        return applied

    def _begin(self, worker: int, group: Group, read: dict[int, int], end: int) -> None:
        """Send the weights to a free worker, unless the busy ones complete all rounds before ``end``."""
        assert self._round is not None
        assert self._message is not None
        if self._round + len(read) >= end:
            group.send({worker: END_OF_CALL})
            return
        message = self._message
        if message.plain:  # the slice itself, which changes before the worker has answered
            message = self._copied(message, worker)
        read[worker] = self._round
        group.send({worker: message})

    def _copied(self, message: Encoded, worker: int) -> Encoded:
        if worker not in self._copies:
            self._copies[worker] = call.empty(message.size)
        np.copyto(self._copies[worker], message.arrays[0])
        call.work(elements=message.size)
        copy = Encoded(message.codec, message.size, (self._copies[worker],))
        copy.plain = True
        return copy

    def _leave(self, group: Group, workers: Sequence[int], busy: Sequence[int] = ()) -> None:
        """End the exchange, for the ``busy`` workers after their gradients; later calls on this group do nothing."""
        self._left = group
        if busy:
            group.receive(busy)
        group.send(dict.fromkeys(workers, LEAVES))

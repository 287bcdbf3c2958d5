"""Servers in the processes of workers: workers exchange gradients and weights directly, many steps in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chimera.core import call
from chimera.core.engine import Group
from chimera.core.parameters import Flat
from chimera.training.messages.end_of_call import LEAVES
from chimera.training.messages.rejection import Applied, Rejected, Served
from chimera.training.plugin import Named
from chimera.training.server.parameter_shard import ParameterShard
from chimera.training.worker.extension import WorkerExtension, worker_extension


@worker_extension("hosted-servers")
class HostedServers(WorkerExtension):
    """Steps the slice of a server between the gradients of its worker.

    The server keeps the slice of the last completed call. So a death during a call loses no slice, and the driver
    evaluates and saves the servers as if they had stepped themselves.
    """

    _shard: ParameterShard | None = None
    _message: Any = LEAVES  # the message that workers receive next: the slice, encoded
    _memory: Flat | None = None  # memory of the slice, which members read without a copy and which is never freed
    _failure: BaseException | None = None
    _left: Group | None = None  # a group whose exchange has ended

    def host(self, settings: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Hold a copy of a server, from what `ParameterShard.lend` returned."""
        self._shard, self._message = None, LEAVES  # if this fails, no member steps
        size = len(state["weights"])
        if self._memory is None or len(self._memory) != size:
            self._memory = call.empty(size)
        self._shard = ParameterShard(state["weights"], **settings, memory=self._memory)
        self._shard.restore(state)
        self._message = self._shard.weights()

    def train_and_serve(
        self,
        rounds: int,
        gradients_to: Group,
        weights_from: Group,
        *,
        rank: int,
        shards: int,
        first: int,
        aggregation: Named = "mean",
    ) -> tuple[Served | None, Mapping[str, Any]]:
        """Take ``rounds`` steps with the gradients of all members; return outcome and state of this worker's slice, if any.

        The result has the same bits as with servers in processes of their own. If a member fails, the calls of all members
        return, within one further round.

        Parameters
        ----------
        gradients_to, weights_from : two groups of all workers, since members that are worker and server send to each other at
            the same time.
        rank : rank of this worker in both groups. The members below ``shards`` hold a slice each.
        first : number of rounds of the run that are complete.
        aggregation : see `ParameterShard.update`.

        Raises
        ------
        ActorLost : a member of the group died.
        """
        others = [other for other in range(gradients_to.size) if other != rank]
        servers = [other for other in range(shards) if other != rank]
        serves = rank < shards
        rejecting: dict[int, Applied] = {}
        for number in range(first, first + rounds if self._left is not gradients_to else first):
            began_s = call.now()
            weights: dict[int, Any] = {rank: self._message} if serves else {}
            if serves and others:
                weights_from.send(dict.fromkeys(others, self._message))
            if servers:
                weights |= weights_from.receive(servers)
            if all(message is LEAVES for message in weights.values()):
                self._left = gradients_to
                break
            gradients = self._gradients([weights[server] for server in range(shards)])
            if servers:
                gradients_to.send({server: gradients[server] for server in servers})
            call.record("gradient", began_s)
            self.worker.prepare()
            if serves:
                began_s = call.now()
                received = {rank: gradients[rank], **(gradients_to.receive(others) if others else {})}
                applied = self._step([received[member] for member in sorted(received)], aggregation)
                if applied is not None and applied.rejected:
                    rejecting[number] = applied
                call.record("update", began_s)
        if self._failure is not None:
            failure, self._failure = self._failure, None  # the run may recover, and start again
            raise failure
        if not serves or self._shard is None:
            return None, {}
        return Served(rejecting), self._shard.state()

    def reduce_rates(self, *factors: float) -> None:
        """Reduce the learning rate of the slice, too."""
        if self._shard is not None:
            self._shard.reduce_rates(*factors)

    def _gradients(self, weights: Sequence[Any]) -> Sequence[Any]:
        """Return the messages of the next gradient to the servers, or end messages if this worker or a server has failed."""
        if self._failure is None and LEAVES not in weights:
            try:
                return self.worker.gradient(weights)
            except BaseException as error:  # raised when the other members have received end messages
                self._failure = error
        return [LEAVES] * len(weights)

    def _step(self, gradients: Sequence[Any], aggregation: Named) -> Applied | None:
        """Update the slice; None if a member has failed. The exchange ends also if no worker has a gradient."""
        self._message, applied = LEAVES, None
        if self._shard is None or LEAVES in gradients:
            return None
        try:
            message, applied = self._shard.update(*gradients, aggregation=aggregation)
        except BaseException as error:
            self._failure = error
            return None
        if applied.gradients or not all(isinstance(gradient, Rejected) for gradient in gradients):
            self._message = message
        return applied

"""Training in a group of servers and workers: many steps in one call, without the driver."""

from __future__ import annotations

from collections.abc import Sequence

from chimera.core import call
from chimera.core.engine import Group
from chimera.training.messages.end_of_call import END_OF_CALL, LEAVES
from chimera.training.worker.extension import WorkerExtension, worker_extension


@worker_extension("server-group")
class ServerGroup(WorkerExtension):
    """The worker's side of `chimera.training.server.group_server.GroupServer`. Servers have the first ranks of the group."""

    _left: Group | None = None  # a group whose exchange has ended

    def train_with_servers(self, steps: int, group: Group, shards: int) -> None:
        """Receive weights and send a gradient to each of ``shards`` servers, ``steps`` times, or until a server ends the call.

        A worker that fails ends the calls of all members.

        Raises
        ------
        ActorLost : a member of the group died.
        """
        servers = range(shards)
        if self._left is group:
            return
        for _ in range(steps):
            began_s = call.now()
            weights = list(group.receive(servers).values())
            if weights[0] == END_OF_CALL:
                group.send(dict.fromkeys(servers, END_OF_CALL))
                return
            if LEAVES in weights:
                self._leave(group, [server for server in servers if weights[server] is not LEAVES])
                return
            try:
                gradients = self.worker.gradient(weights)
            except BaseException:
                self._leave(group, servers)
                raise
            group.send(dict(zip(servers, gradients, strict=True)))
            call.record("gradient", began_s)
            self.worker.prepare()

    def _leave(self, group: Group, servers: Sequence[int]) -> None:
        """End the exchange; later calls on this group do nothing."""
        self._left = group
        group.send(dict.fromkeys(servers, LEAVES))

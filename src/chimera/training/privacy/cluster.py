"""The cluster of a private run: it opens each round among the clients, and has the servers told how to close it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from chimera.core.errors import ActorLost, ConfigurationError, TooFewWorkersError
from chimera.training.cluster import TrainingCluster
from chimera.training.privacy.settings import Privacy

_TRIES = 16  # rounds in a row that too few clients survive, because they are late


class PrivateCluster(TrainingCluster):
    """A `TrainingCluster` whose clients agree on masks before they are asked, if the run has secure aggregation.

    The four messages of Bonawitz et al. 2017 are calls of workers and servers (see `chimera.privacy.secure_aggregation`): the
    driver waits once for the updates, and says who survived; it sees none of them.

    Parameters
    ----------
    privacy : what the run promises; the other parameters are those of `TrainingCluster`.
    """

    def __init__(self, privacy: Privacy, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._privacy = privacy

    def soonest(
        self,
        workers: Sequence[Any],
        ask: Callable[[Any], Any],
        count: int | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """Ask as `TrainingCluster.soonest` does, with noise or masks; return the answers of the survivors.

        Raises
        ------
        ActorLost : fewer than the threshold are left, and somebody is dead: the round is to be repeated.
        TooFewWorkersError : again and again too few answered in time.
        """
        if not self._privacy.secure_aggregation:
            for worker in workers:
                worker.take_part(len(workers))
            answers = super().soonest(workers, ask, count, timeout_s)
            for server in self.shards:
                server.expect(len(workers), len(workers) / len(self.workers))
            return answers
        for _ in range(_TRIES):
            if answers := self._masked_round(workers, ask, count, timeout_s):
                return answers
        raise TooFewWorkersError(
            f"{_TRIES} rounds in a row too few clients answered in {timeout_s} s: give them more time"
        )

    def _masked_round(
        self, workers: Sequence[Any], ask: Callable[[Any], Any], count: int | None, timeout_s: float | None
    ) -> dict[str, Any]:
        """Return the answers of a round, or nothing if it has to be repeated."""
        self._raise_dead(workers)
        clients = self._ready(workers, count or len(workers), timeout_s)
        asked, needed = len(clients), self._privacy.needed(len(clients))
        if asked < 2:
            raise ConfigurationError("privacy: secure aggregation needs at least 2 clients in a round")
        first, *_ = self.shards
        roster = first.roster(*[client.advertise_keys(asked) for client in clients])
        sealed = first.route(*[client.share_secrets(roster) for client in clients], returns=asked)
        for client, each in zip(clients, sealed, strict=True):
            client.receive_secrets(each)
        answers = super().soonest(clients, ask, max(count or asked, needed), timeout_s)
        there = [client for client in clients if client.name in answers]
        masked = self.get([client.has_masked() for client in there])
        survivors = [client for client, sent in zip(there, masked, strict=True) if sent]
        if len(survivors) < needed:
            left = f"{len(survivors)} of {asked} clients are left, and the sum of fewer than {needed} is not unmasked"
            self.told.append(("round repeated", "", left))
            self._raise_dead(clients)
            # An update that is not finite is no death: whoever follows these decides what becomes of the run.
            return {client.name: answers[client.name] for client in there if client not in survivors}
        flags = np.array([client in survivors for client in clients], np.uint8)
        revealed = super().soonest(survivors, lambda client: client.reveal_shares(flags), len(survivors))
        if len(revealed) < needed:
            self._raise_dead(survivors)
        for stream, server in enumerate(self.shards):
            server.expect(asked, len(workers) / len(self.workers), stream, roster, *revealed.values())
        return answers

    def _raise_dead(self, workers: Sequence[Any]) -> None:
        if dead := self._dead() & {worker.name for worker in workers}:
            raise ActorLost(f"{', '.join(sorted(dead))} died")

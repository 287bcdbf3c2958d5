"""The cluster of a private run: it opens each round among the clients, and has the servers told how to close it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from chimera.core.errors import ActorLost, TooFewWorkersError
from chimera.training.cluster.cluster import TrainingCluster
from chimera.training.privacy.settings import Privacy

_TRIES = 16  # rounds in a row that too few clients survive, because they are late


class PrivateCluster(TrainingCluster):
    """A `TrainingCluster` whose clients agree on masks before they are asked, if the run has secure aggregation.

    The four messages of Bonawitz et al. 2017 are calls of workers and servers (see `chimera.privacy.secure_aggregation`): the
    driver waits for keys, updates and shares, and says who is there; it sees none of them. Who has no keys is not in the
    round; who dies before secrets are shared makes it begin anew; who does later is left out of the sum.

    Parameters
    ----------
    privacy : what the run promises; the other parameters are those of `TrainingCluster`.
    momenta : whether the local optimizers of workers remember anything from step to step.
    """

    def __init__(self, privacy: Privacy, *given: Any, momenta: bool = False, **options: Any) -> None:
        super().__init__(*given, **options)
        self._privacy, self._momenta = privacy, momenta

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
        if self._privacy.secure_aggregation:
            for _ in range(_TRIES):
                if answers := self._masked_round(workers, ask, count, timeout_s):
                    return answers
            raise TooFewWorkersError(
                f"{_TRIES} rounds in a row too few clients answered in {timeout_s} s: give them more time"
            )
        asked = len(workers)
        if self._privacy.deviation(asked):
            for worker in workers:
                worker.take_part(asked)
        answers = super().soonest(workers, ask, count, timeout_s)
        for server in self.shards:
            server.expect(asked, count or asked, asked / len(self.workers))
        return answers

    def _of_workers(self) -> dict[str, Any]:
        """Return nothing: what a private worker alone knows stays with it."""
        return {}

    def _restore_workers(self, state: Mapping[str, Any]) -> None:  # noqa: ARG002 - no checkpoint has anything of workers
        """Tell that workers of a resumed run begin with nothing that they alone knew."""
        for worker in self.workers:
            self._recall(worker, ())

    def _recall(self, worker: Any, others: Sequence[Any]) -> None:  # noqa: ARG002 - others keep what they know
        """Tell that a worker that is new here begins without momenta: those of others tell of data."""
        if self._momenta and worker.name in self._places:
            self.unreported.append(
                ("state gone", worker.name, "its local optimizer begins anew: momenta leave no private worker")
            )

    def _masked_round(
        self, workers: Sequence[Any], ask: Callable[[Any], Any], count: int | None, timeout_s: float | None
    ) -> dict[str, Any]:
        """Return the answers of a round, or nothing if it has to be repeated."""
        if count is None and timeout_s is None:
            self._raise_dead(workers)
        ready = self._ready(workers, count or len(workers), timeout_s)
        keys = super().soonest(ready, _advertised, len(ready), timeout_s)
        clients = [worker for worker in workers if worker.name in keys]
        asked, needed = len(clients), self._privacy.needed(len(clients))
        if asked < 2:
            return self._too_few(workers, asked, 2)
        router = self.shards[0]
        roster = router.roster(*keys.values())
        sealed = router.route(*[client.share_secrets(roster) for client in clients], returns=asked)
        for client, each in zip(clients, sealed, strict=True):
            client.receive_secrets(each)
        answers = super().soonest(clients, ask, max(count or asked, needed), timeout_s)
        there = [client for client in clients if client.name in answers]
        masked = self.get([client.has_masked() for client in there])
        survivors = [client for client, sent in zip(there, masked, strict=True) if sent]
        if len(survivors) < needed:
            # An update that is not finite is no death: whoever follows these decides what becomes of the run.
            refused = {client.name: answers[client.name] for client in there if client not in survivors}
            return refused or self._too_few(clients, len(survivors), needed)
        flags = np.array([client in survivors for client in clients], np.uint8)
        revealed = super().soonest(survivors, lambda client: client.reveal_shares(flags), len(survivors))
        if len(revealed) < needed:
            return self._too_few(clients, len(revealed), needed)
        share = len(workers) / len(self.workers)
        if self._privacy.noise:
            self.released_sums.append((self._privacy.multiplier(len(survivors), asked), share))
        wanted = max(count or len(workers), needed)
        for stream, server in enumerate(self.shards):
            server.expect(asked, wanted, share, stream, roster, *revealed.values())
        return answers

    def _too_few(self, clients: Sequence[Any], left: int, needed: int) -> dict[str, Any]:
        """Tell that a round has to be repeated; raise if somebody has to be replaced first."""
        why = f"{left} of {len(clients)} clients are left, and the sum of fewer than {needed} is not unmasked"
        self.unreported.append(("round repeated", "", why))
        self._raise_dead(clients)
        return {}

    def _raise_dead(self, workers: Sequence[Any]) -> None:
        if dead := self._dead() & {worker.name for worker in workers}:
            raise ActorLost(f"{', '.join(sorted(dead))} died")


def _advertised(client: Any) -> Any:
    return client.advertise_keys()

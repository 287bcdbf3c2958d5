"""The cluster of a private run: runs secure aggregation around each round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from chimera.core.errors import ActorLost, TooFewWorkersError
from chimera.training.cluster.cluster import TrainingCluster
from chimera.training.privacy.settings import Privacy

_TRIES = 16  # consecutive attempts at a round in which too many clients were late


class PrivateCluster(TrainingCluster):
    """A `TrainingCluster` whose clients agree on masks before each round, if the run has secure aggregation.

    The four messages of Bonawitz et al. 2017 are calls of workers and servers (see `chimera.privacy.secure_aggregation`). The
    driver waits for keys, updates and shares without reading them, and selects the survivors. A client without keys is not in
    the round. If a client dies before secrets are shared, the round starts again. If it dies later, the sum omits its update.

    Parameters
    ----------
    privacy : privacy settings; the other parameters are those of `TrainingCluster`.
    momenta : whether the workers' local optimizers have state.
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
        """Call workers as `TrainingCluster.soonest` does, with noise or masks; return the results of the survivors.

        Raises
        ------
        ActorLost : fewer clients than the threshold are left, and one is dead: the round must be repeated.
        TooFewWorkersError : too few clients answered in time, in many consecutive rounds.
        """
        if self._privacy.secure_aggregation:
            for _ in range(_TRIES):
                if answers := self._masked_round(workers, ask, count, timeout_s):
                    return answers
            raise TooFewWorkersError(
                f"too few clients answered within {timeout_s} s in {_TRIES} consecutive rounds: increase the timeout"
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
        """Return the steps of the workers: the local state of a private worker does not leave it."""
        return {"steps": self.get([worker.step() for worker in self.workers])}

    def _restore_workers(self, state: Mapping[str, Any]) -> None:  # noqa: ARG002 - checkpoints hold no state of workers
        """Report that workers of a resumed run start without local state."""
        for worker in self.workers:
            self._recall(worker, ())

    def _recall(self, worker: Any, others: Sequence[Any]) -> None:  # noqa: ARG002 - other workers keep their state
        """Report that a new worker starts without momenta: momenta of other workers would reveal data."""
        if self._momenta and worker.name in self._places:
            self.unreported.append(
                ("state gone", worker.name, "its local optimizer starts again: momenta do not leave private workers")
            )

    def _masked_round(
        self, workers: Sequence[Any], ask: Callable[[Any], Any], count: int | None, timeout_s: float | None
    ) -> dict[str, Any]:
        """Return the results of a round; an empty dictionary if it must be repeated."""
        if count is None and timeout_s is None:
            self._raise_dead(workers)
        ready = self._ready(workers, count or len(workers), timeout_s)
        keys = super().soonest(ready, _advertised, len(ready), timeout_s)
        clients = [worker for worker in workers if worker.name in keys]
        asked, needed = len(clients), self._privacy.needed(len(clients))
        if asked < 2:
            return self._too_few(workers, asked, 2)
        router = self.shards[0]
        public_keys = router.public_keys(*keys.values())
        sealed = router.route(*[client.share_secrets(public_keys) for client in clients], returns=asked)
        for client, each in zip(clients, sealed, strict=True):
            client.receive_secrets(each)
        answers = super().soonest(clients, ask, max(count or asked, needed), timeout_s)
        there = [client for client in clients if client.name in answers]
        masked = self.get([client.has_masked() for client in there])
        survivors = [client for client, sent in zip(there, masked, strict=True) if sent]
        if len(survivors) < needed:
            # A client whose update is not finite is not lost: the caller counts the rejection.
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
            server.expect(asked, wanted, share, stream, public_keys, *revealed.values())
        return answers

    def _too_few(self, clients: Sequence[Any], left: int, needed: int) -> dict[str, Any]:
        """Report that a round must be repeated; raise if a worker must be replaced first."""
        reason = f"{left} of {len(clients)} clients are left, but unmasking the sum needs {needed}"
        self.unreported.append(("round repeated", "", reason))
        self._raise_dead(clients)
        return {}

    def _raise_dead(self, workers: Sequence[Any]) -> None:
        if dead := self._dead() & {worker.name for worker in workers}:
            raise ActorLost(f"{', '.join(sorted(dead))} died")


def _advertised(client: Any) -> Any:
    return client.advertise_keys()

"""The cluster of a run as strategies see it: workers, servers, and ways to wait for their results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol


class Announced(NamedTuple):
    """The local steps of one worker in its next call.

    Attributes
    ----------
    steps : number of local steps.
    first : index of the first step.
    site : number of the site; all workers of a site start from the same weights.
    """

    steps: int
    first: int
    site: int = 0


class Cluster(Protocol):
    """Workers and servers of a run, as a strategy sees them."""

    @property
    def workers(self) -> Sequence[Any]:
        """The living workers, in rank order."""

    @property
    def ranks(self) -> Sequence[int]:
        """The ranks of the living workers."""

    @property
    def sharded_workers(self) -> Sequence[str]:
        """The names of the workers that the data is distributed to, by their places in `Strategy.holds`; some may be dead."""

    @property
    def shards(self) -> Sequence[Any]:
        """The parameter shards, in order; empty if the strategy asked for no servers."""

    @property
    def round(self) -> int:
        """The number of completed rounds."""

    @property
    def horizon(self) -> int:
        """The number of rounds that the trainer wants before the next evaluation, at least 1."""

    def servers(self, shards: int) -> Sequence[Any]:
        """Return the parameter shards. The first call creates them from the initial weights."""

    def edges(self, count: int) -> Sequence[Any]:
        """Return the edge servers, each of which holds all parameters. Missing edge servers are created."""

    def addressed(
        self, worker: Any, weights: Sequence[Any], batches: int = 1, shard: int | None = None, first: int | None = None
    ) -> Sequence[Any]:
        """Return ``weights`` in the form that ``worker`` receives with its next call.

        ``weights`` are the newest weights that all servers, or the server of ``shard``, returned. Normally all workers receive
        the same. Two cases differ:

        - The codec sends each worker the changes since its last message.
        - The worker receives only the rows that its next ``batches`` batches need. With ``first``, these are the batches from
          that number on. ``batches`` must be the number that the call computes.
        """

    def announce(self, work: Mapping[str, Announced]) -> None:
        """Announce the local steps of each worker in the next calls, by name.

        Workers of one process may then take the steps of a site together, if that is faster.
        """

    def gather(self, ask: Callable[[Any], Any], quorum: float = 1.0, timeout_s: float | None = None) -> list[Any]:
        """Call ``ask`` for every free worker, and return the first ``quorum`` answers, in rank order.

        With a quorum of 1 and no time limit the call returns at once. The answers are refs. A loss then raises an error where
        they are used. Otherwise the call returns when a share ``quorum`` of the living workers has answered, or after
        ``timeout_s`` seconds. A straggler is called again only after its old answer has arrived; that answer is dropped.
        """

    def soonest(
        self,
        workers: Sequence[Any],
        ask: Callable[[Any], Any],
        count: int | None = None,
        timeout_s: float | None = None,
    ) -> Mapping[str, Any]:
        """Call ``ask`` for the free ones of ``workers``, and return the first ``count`` answers by worker name, in rank order.

        Without a count and a time limit, the call returns at once with all answers. A loss then raises an error where the
        answers are used. Otherwise the call returns ``count`` answers. It returns fewer if ``timeout_s`` seconds are over or
        the other workers are dead. As with `gather`, a straggler is called again only after its old answer has arrived. In a
        private run the answers may be masked: pass all of them together to one `ParameterShard.update`.

        Raises
        ------
        ActorLost : no worker has answered, and at least one is dead.
        TooFewWorkersError : no worker has answered in time.
        """

    def until(
        self,
        enough: Callable[[Collection[str]], bool],
        workers: Sequence[Any],
        ask: Callable[[Any], Any],
        least: int = 1,
        timeout_s: float | None = None,
    ) -> Mapping[str, Any]:
        """Do as `soonest`, but wait for at least ``least`` answers, until ``enough`` accepts the names of their workers."""

    def first(self, pending: Mapping[str, Any]) -> str:
        """Wait for the first answer, and return the name of its worker.

        ``pending`` maps names of workers to results of their calls: a ref, or the list of refs of one call. If several workers
        have answered, the earliest answer counts. In a tie, the answer of the lower rank counts.

        Raises
        ------
        ActorLost : one of these workers is dead. The trainer removes it from the cluster, and calls `Strategy.rounds` again.
        """

    def connected(self, worker: Any) -> bool:
        """Return whether a worker can be reached now, as far as the engine knows; a private run does not ask the engine."""

    def group(self, workers: Sequence[Any] | None = None) -> Any:
        """Return a group of ``workers``, by default of all living workers, in rank order."""

    def group_with_servers(self) -> Any:
        """Return a group of all servers and all living workers, in this order; None if rounds need the driver."""

    def groups_with_hosted_servers(self) -> tuple[Any, Any] | None:
        """Return two groups of all living workers, for gradients and for weights; None if workers cannot hold the servers."""

    def get(self, refs: Any) -> Any:
        """Return the values of refs to the driver; for small values."""

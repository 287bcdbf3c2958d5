"""Rounds of sites: servers, or several edge servers, and the workers that send to each."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from chimera.strategies.cluster import Announced, Cluster
from chimera.strategies.hierarchy import Hierarchy, Site
from chimera.strategies.local_steps import LocalSteps
from chimera.strategies.participation import Participation, Work


class SiteRounds(LocalSteps):
    """The part of the FedAvg family that asks the workers of all sites, and lets the servers of each site step.

    Without edge servers there is one site.
    """

    _participation: Participation
    _samples: Mapping[str, float]  # by worker; empty if samples do not matter
    _batched: bool

    @abstractmethod
    def _plan(self, workers: Sequence[Any], round_: int, site: int) -> list[Work]:
        """Return the work of each participant of a round of a site."""

    @abstractmethod
    def _options(self, plan: Sequence[Work], round_: int, *, kept: bool) -> list[dict[str, Any]]:
        """Return the options of each participant's call."""

    @abstractmethod
    def _ask(self, work: Work, weights: Sequence[Any], options: Mapping[str, Any]) -> list[Any]:
        """Start training of one worker from ``weights``; return refs of its messages, one for each server."""

    @abstractmethod
    def _step(
        self, servers: Sequence[Any], plan: Sequence[Work], answers: Mapping[str, Any]
    ) -> tuple[list[Any], list[Any]]:
        """Call the servers to step by the mean of the answers; return refs of the new weights, and of small results."""

    def _through_edges(
        self, cluster: Cluster, hierarchy: Hierarchy, servers: Sequence[Any], weights: Sequence[Any], round_: int
    ) -> tuple[list[Any], list[Any]]:
        """Issue the rounds of edge servers from these weights, and a step of the servers; return refs as `_step` does."""
        edges, clients = cluster.edges(hierarchy.edges), hierarchy.clients(cluster)
        sent = [[edge.adopt(*weights)] for edge in edges]
        done: list[Any] = []
        for own in range(hierarchy.rounds):
            sites = [Site([edge], *each) for edge, *each in zip(edges, clients, sent, strict=True)]
            stepped = self._exchange(cluster, sites, round_ * hierarchy.rounds + own, kept=own == 0)
            sent = [list(new) for new, _ in stepped]
            done += [ref for _, small in stepped for ref in small]
        held = [sum(self._samples.get(worker.name, 1) for worker in own) for own in clients]
        factors = [each * len(edges) / sum(held) for each in held]  # as in `_weights`
        changes = [
            edge.change(each, len(servers), returns=len(servers)) for edge, each in zip(edges, factors, strict=True)
        ]
        updates = [
            server.update(*piece, returns=2) for server, piece in zip(servers, zip(*changes, strict=True), strict=True)
        ]
        new, small = [list(refs) for refs in zip(*updates, strict=True)]
        return new, [*done, *small]

    def _exchange(
        self, cluster: Cluster, sites: Sequence[Site], round_: int, *, kept: bool = True
    ) -> list[tuple[list[Any], list[Any]]]:
        """Issue a round of each site; return refs of its new weights, and of small results.

        ``kept`` is whether workers keep their results, because the round is repeated after a loss.
        """
        plans = [self._plan(site.workers, round_, number) for number, site in enumerate(sites)]
        # No variable holds the answers: each is as large as the model and must be freed before the next round runs.
        return self._step_sites(sites, plans, self._answers(cluster, sites, plans, round_, kept=kept))

    def _step_sites(
        self, sites: Sequence[Site], plans: Sequence[Sequence[Work]], answers: Mapping[str, Any]
    ) -> list[tuple[list[Any], list[Any]]]:
        stepped = []
        for site, plan in zip(sites, plans, strict=True):
            own = {work.worker.name: answers[work.worker.name] for work in plan if work.worker.name in answers}
            stepped.append(self._step(site.servers, plan, own) if own else (list(site.weights), []))
        return stepped

    def _answers(
        self, cluster: Cluster, sites: Sequence[Site], plans: Sequence[Sequence[Work]], round_: int, *, kept: bool
    ) -> Mapping[str, list[Any]]:
        """Start training by the plan of each site; return the answers that make the round, by name of the worker."""
        calls: dict[str, tuple[Work, Mapping[str, Any], Site]] = {}
        announced: dict[str, Announced] = {}
        for number, (site, plan) in enumerate(zip(sites, plans, strict=True)):
            options = self._options(plan, round_, kept=kept)
            announced |= {work.worker.name: Announced(work.steps, work.first, number) for work in plan}
            calls |= {work.worker.name: (work, own, site) for work, own in zip(plan, options, strict=True)}
        if self._batched:
            cluster.announce(announced)

        def ask(worker: Any) -> list[Any]:
            work, options, site = calls[worker.name]
            return self._ask(work, cluster.addressed(worker, site.weights, work.steps, first=work.first), options)

        chosen = [work.worker for plan in plans for work in plan]
        if self._participation.waits_for_all:
            return cluster.soonest(chosen, ask)
        counts = [self._participation.count_of(len(s.workers), len(p)) for s, p in zip(sites, plans, strict=True)]
        if len(sites) == 1:
            return cluster.soonest(chosen, ask, counts[0], self._participation.deadline_s)

        def enough(names: Collection[str]) -> bool:
            there = [sum(work.worker.name in names for work in plan) for plan in plans]
            return all(found >= count for found, count in zip(there, counts, strict=True))

        return cluster.until(enough, chosen, ask, sum(counts), self._participation.deadline_s)

"""The edges along which the actors of a run send messages, from the settings of its experiment."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import Any, NamedTuple

from chimera.core.errors import ChimeraError
from chimera.core.registry import registered_names_only
from chimera.strategies.strategy import STRATEGIES
from chimera.strategies.topologies.topology import topology_of

Edges = list[tuple[int, int]]
MAX_WORKERS = 64
"""Graphs of more workers are not drawn."""
_ROUNDS = 8


class Topology(NamedTuple):
    """Edges between workers, by rank.

    Attributes
    ----------
    edges : pairs of ranks; None if workers exchange messages with the servers only.
    text : a sentence about them; empty if they are not drawn.
    directed : whether only the first worker of a pair sends to the second one.
    """

    edges: Edges | None
    text: str
    directed: bool = False


def topology(experiment: Mapping[str, Any]) -> Topology:
    """Return the edges along which the workers of an experiment send messages."""
    strategy, train = experiment.get("strategy"), experiment.get("train")
    options = dict(strategy) if isinstance(strategy, Mapping) else {"name": strategy}
    workers = train.get("workers") if isinstance(train, Mapping) else None
    if not isinstance(workers, int) or not 0 < workers <= MAX_WORKERS:
        return Topology(None, "")
    name = options.get("name")
    if (default := _default_topology(name)) is not None:
        return _mixed(options.get("topology", default), workers)
    return _of_strategy(name, workers)


def _of_strategy(name: Any, workers: int) -> Topology:
    """Return the edges of a strategy whose topology is fixed."""
    if name == "ring-all-reduce":
        ring = [(i, (i + 1) % workers) for i in range(workers)]
        return Topology(ring, "Each worker sends chunks to the next one in a ring.", directed=True)
    if name == "tree-all-reduce":
        tree = [((i - 1) // 2, i) for i in range(1, workers)]
        return Topology(tree, "Workers add vectors up a binary tree, and send the sum down.")
    if name == "pipeline-parallel":
        chain = [(i, i + 1) for i in range(workers - 1)]
        return Topology(chain, "Each worker holds a stage, and exchanges activations with the next one.")
    sends = str(getattr(_factory(name), "sends", ""))
    if sends == "collectives":
        return Topology(_ring(workers), "An all-reduce of all workers, drawn as a ring.")
    if sends == "peers" or name in ("hybrid", "tensor-parallel"):
        return Topology(list(combinations(range(workers), 2)), "Workers exchange messages with all others.")
    return Topology(None, "Workers exchange messages with the servers.")


def _mixed(given: Any, workers: int) -> Topology:
    try:
        with registered_names_only("the settings of a run"):
            found = topology_of(given)
            rounds = min(found.period(workers) or _ROUNDS, _ROUNDS)
            pairs = {
                (min(i, int(j)), max(i, int(j)))
                for round_ in range(rounds)
                for i, others in enumerate(found.mixing(range(workers), round_).neighbours)
                for j in others
            }
    except (ChimeraError, TypeError, ValueError):
        return Topology(_ring(workers), "The topology of the run is not known here; it is drawn as a ring.")
    label = given if isinstance(given, str) else "given"
    varying = f", of {rounds} rounds" if rounds > 1 else ""
    text = f"Workers exchange messages with their neighbours in the {label} topology{varying}."
    return Topology(sorted(pairs), text)


def _ring(workers: int) -> Edges:
    return _unique((i, (i + 1) % workers) for i in range(workers))


def _unique(pairs: Iterable[tuple[int, int]]) -> Edges:
    return sorted({(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1]})


def _default_topology(name: Any) -> Any:
    """Return the default of the strategy's option ``topology``; None if it has no such option."""
    factory = _factory(name)
    option = inspect.signature(factory).parameters.get("topology") if factory is not None else None
    return option.default if option is not None and isinstance(option.default, str) else None


def _factory(name: Any) -> Any:
    try:
        with registered_names_only("the settings of a run"):
            return STRATEGIES.find(name).factory if isinstance(name, str) else None
    except ChimeraError:
        return None

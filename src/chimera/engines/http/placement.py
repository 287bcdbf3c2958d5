"""Placement: where the actors of the HTTP engine run, by the class of the actor and what the nodes host."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from chimera.core.address import Address
from chimera.core.engine import Resources
from chimera.core.errors import ConfigurationError, RunError
from chimera.engines.http.channels.actor_channels import DriverChannel
from chimera.engines.http.channels.channel import Channel
from chimera.engines.http.channels.hosted_channel import HostedChannel
from chimera.engines.http.channels.routed_channel import RoutedChannel
from chimera.engines.http.node import Node
from chimera.engines.http.refs import CallTracker


class Placement:
    """Selects a node, or the driver's process, for each new actor of an engine.

    Parameters
    ----------
    tracker : tracks the calls of the engine.
    nodes, addresses : the nodes of the engine, and their addresses in the same order.
    key : key of the engine.
    remote : options of the channels to nodes.

    Attributes
    ----------
    run_settings : settings of the run, which nodes receive with each request for an actor; None: none.
    nodes_by_actor : the node of each actor that a node hosts, by the name of the actor.
    """

    def __init__(
        self,
        tracker: CallTracker,
        nodes: Sequence[Node],
        addresses: Sequence[Address],
        key: str,
        remote: Mapping[str, Any],
    ) -> None:
        self._tracker, self._nodes, self._addresses, self._key, self._remote = tracker, nodes, addresses, key, remote
        self.run_settings: Mapping[str, Any] | None = None
        self._routed = 0  # actors with routes so far
        self.nodes_by_actor: dict[str, Node] = {}
        self._reserved: set[Node] = set()  # nodes of actors that must be alone there
        self._instances: dict[str, str] = {}  # address of the node of each actor, by the name of the node's process

    def channel(self, actor_type: Callable[..., Any], name: str, rank: int, resources: Resources) -> Channel:
        """Return the channel of a new actor, see `HttpEngine`.

        Raises
        ------
        RunError : the class must be hosted, and no reachable node hosts it, or none is free. Or the class may be hosted, but no
            node is known to host it, and a node does not report which classes it hosts.
        ConfigurationError : two addresses are of the same node.
        """
        if getattr(actor_type, "routes", None):
            node = self._nodes[self._routed % len(self._nodes)]
            self._routed += 1
            self._check_apart(node)
            return RoutedChannel(self._tracker, name, rank, node, actor_type=actor_type, **self._remote)
        hosting: list[Node] = []
        module, kind = actor_type.__module__, f"{actor_type.__module__}.{getattr(actor_type, '__qualname__', '')}"
        wanted = getattr(actor_type, "hosted", None)
        # A worker that replaces a lost one finds its data on the node of the lost one.
        home = self.nodes_by_actor.get(name)
        if wanted is not False and home is None:
            answers, hosting = self._hosting(kind)
            failures = "; ".join(kinds for kinds in answers.values() if isinstance(kinds, str))
            if wanted and not hosting:
                raise RunError(f"no node hosts {kind!r}: {failures or 'it is on none of their lists'}")
            if failures and not hosting:  # a node that does host it may have data that the driver lacks
                raise RunError(
                    f"a node does not report whether it hosts {kind!r}: {failures}; start it, or set hosted = False in the "
                    "class if its actors must run in the driver"
                )
        if wanted is False or not (home or hosting):
            return DriverChannel(self._tracker, name, rank, actor_type)
        if home is None:
            alone = bool(getattr(actor_type, "one_per_node", False))
            home = self._free_node(name, hosting, answers) if alone else min(hosting, key=lambda each: each.actors)
            self._check_apart(home)
            if alone:
                self.reserve(name, home)
            self.nodes_by_actor[name] = home
        key = f"{self._key}.{rank}"
        return HostedChannel(
            self._tracker, name, rank, home, key=key, kind=kind, module=module, threads=resources.threads,
            failure_is_loss=bool(getattr(actor_type, "failure_is_loss", False)), settings=self.run_settings,
            brief=frozenset(getattr(actor_type, "brief", ())), **self._remote
        )  # fmt: skip

    def _hosting(self, kind: str) -> tuple[dict[Node, frozenset[str] | str], list[Node]]:
        """Return the answers of the nodes about the classes that they host, and the nodes that host this class.

        If no node is known to host it, nodes that have not answered soon may answer until the time limit of a call.
        """
        answers = {node: node.kinds() for node in self._nodes}
        deadline_s = time.monotonic() + self._remote["timeout_s"]
        hosting = _with(kind, answers)
        for node in [node for node, kinds in answers.items() if isinstance(kinds, str)]:
            if not hosting and (left_s := deadline_s - time.monotonic()) > 0:
                answers[node] = node.kinds(left_s)
                hosting = _with(kind, answers)
        return answers, hosting

    def reserve(self, name: str, node: Node) -> None:
        """Give an actor a node that no other actor which needs a node of its own gets."""
        self.nodes_by_actor[name] = node
        self._reserved.add(node)

    def _free_node(self, name: str, hosting: Sequence[Node], answers: Mapping[Node, frozenset[str] | str]) -> Node:
        """Return a node that no other actor has reserved for itself."""
        if not self._reserved:  # at the start only: later, a dead node must not prevent other nodes from joining
            failures = [kinds for kinds in answers.values() if isinstance(kinds, str)]
            if failures:
                raise RunError(
                    f"a node does not answer: {'; '.join(failures)}; start it, or take its address out of 'nodes'"
                )
            _check_addresses(self._addresses)
        free = [node for node in hosting if node not in self._reserved]
        if not free:
            count = f"{len(self._nodes)} node{'s' if len(self._nodes) > 1 else ''}"
            raise RunError(f"{name} has no node of its own among {count}: give as many nodes as workers")
        return free[0]

    def _check_apart(self, node: Node) -> None:
        """Raise ConfigurationError if a node that gets an actor is one of the other nodes, at another address."""
        if len(self._addresses) > 1 and (instance := node.instance()):
            known = self._instances.setdefault(instance, node.url)
            if known != node.url:
                raise _same_node(known, node.url)


def _with(kind: str, answers: Mapping[Node, frozenset[str] | str]) -> list[Node]:
    return [node for node, kinds in answers.items() if not isinstance(kinds, str) and kind in kinds]


def _same_node(first: str, second: str) -> ConfigurationError:
    return ConfigurationError(
        f"engine 'http', option 'nodes': {first!r} and {second!r} are the same node: give each once"
    )


def _check_addresses(addresses: Sequence[Address]) -> None:
    """Raise ConfigurationError if two addresses are equal, before any node gets an actor."""
    seen: dict[tuple[Any, int, str], str] = {}
    for address in addresses:
        try:
            found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
            hosts = {each[4][0] for each in found}
        except OSError:
            hosts = {address.host}
        for host in hosts:
            key = host, address.port, address.path
            if key in seen:
                raise _same_node(seen[key], address.url)
        seen |= dict.fromkeys([(host, address.port, address.path) for host in hosts], address.url)

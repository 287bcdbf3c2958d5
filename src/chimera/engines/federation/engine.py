"""The driver side of a federation."""

from __future__ import annotations

import math
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from chimera.core.counted import counted
from chimera.core.engine import ENGINES
from chimera.core.errors import ConfigurationError, RunError
from chimera.engines.http.engine import HttpEngine
from chimera.engines.http.node import Node

_CHECK_INTERVAL_S = 0.5  # seconds between checks whether the user has stopped a waiting run


@ENGINES.register("federation", requires="websockets", extra="federation")
class FederationEngine(HttpEngine):
    """An engine of actors in nodes that dial out to a hub. The driver dials the same hub.

    It is `HttpEngine` with another connection to the nodes. A call is run once, however often connections break: the driver
    repeats the request until the answer has arrived, and the node returns the answer of the only run.

    Parameters
    ----------
    hub : address of the hub, ``https://host:port``; default: the one that the driver has joined.
    nodes : names of the nodes, or ``"all"``: those that are connected at the start.
    min_nodes : number of connected nodes with which a run starts and continues. With fewer, the run waits. A node that connects
        later, or again, joins. A round ends without the nodes that leave during it if it has this many answers.
        Default: all ``nodes`` must be connected at the start, and the run never waits.
    identity : folder of the driver's identity, which ``chimera node join`` has written for the role requester.
    wait_s : seconds for which the start waits for the nodes, or with ``"all"`` for the first node. With ``min_nodes``, for the
        hub only.
    away_s : seconds after which a node that is not connected is lost. A request to create an actor there waits for the same
        time again.
    policy_wait_s : seconds for which a call of a worker waits for the hours or the daily limits of a node's policy. After that
        the worker is lost, and starts again when the policy allows it. Default: the run waits.
    timeout_s, health_every_s, max_bytes, keeps_rows, on_answer : see `HttpEngine`.

    Attributes
    ----------
    patience_s : seconds that a run waits for the replacement of a lost worker: no other node has its data.
    """

    def __init__(
        self,
        *,
        hub: str | None = None,
        nodes: Sequence[str] | str = "all",
        min_nodes: int | None = None,
        identity: str,
        wait_s: float = 60.0,
        away_s: float = 60.0,
        policy_wait_s: float = math.inf,
        timeout_s: float = 600.0,
        health_every_s: float = 1.0,
        max_bytes: int = 1 << 30,
        keeps_rows: bool = True,
        on_answer: Callable[[str, float], None] | None = None,
    ) -> None:
        positive = {"timeout_s": timeout_s, "health_every_s": health_every_s, "max_bytes": max_bytes}
        for name, value in (positive | {"wait_s": wait_s, "away_s": away_s, "policy_wait_s": policy_wait_s}).items():
            if not value > 0:
                raise ConfigurationError(f"engine 'federation', option {name!r}: must be above 0, not {value!r}")
        names = None if nodes == "all" else [nodes] if isinstance(nodes, str) else list(nodes)
        if names is not None and (not names or len(set(names)) < len(names)):
            raise ConfigurationError("engine 'federation', option 'nodes': give 'all', or different names of nodes")
        most = sys.maxsize if names is None else len(names)
        if min_nodes is not None and not 1 <= min_nodes <= most:
            text = f"at least 1, and at most the number of nodes, not {min_nodes}"
            raise ConfigurationError(f"engine 'federation', option 'min_nodes': must be {text}")
        from chimera.engines.federation.connection import TunnelConnection
        from chimera.engines.federation.credentials import Credentials
        from chimera.engines.federation.tunnel import Tunnel

        credentials = Credentials.read(Path(identity).expanduser(), "requester", hub)
        key = secrets.token_hex(16)
        self._tunnel = tunnel = Tunnel(credentials, key, max_bytes=max_bytes, away_s=away_s)
        self._names, self.min_nodes, self.patience_s = names, min_nodes, away_s

        def node(name: str) -> Node:
            return Node(
                name,
                partial(TunnelConnection, tunnel, name, policy_wait_s),
                engine_key=key,
                health_every_s=health_every_s,
            )

        self._node = node
        try:
            if min_nodes is None:
                found = _nodes(tunnel, names, wait_s)
            else:
                tunnel.wait_for(lambda _: True, wait_s)  # raises if the hub cannot be reached
                found = names or []
            remote: dict[str, Any] = {"timeout_s": timeout_s, "retries": 0, "on_answer": on_answer}
            self._set_up([node(name) for name in found], key, remote, keeps_rows=keeps_rows, last=tunnel.close)
        except BaseException:
            tunnel.close()
            raise

    def declare(self, settings: Mapping[str, Any], on_wait: Callable[[str], None] | None = None) -> None:
        """Declare the settings of the run, which nodes receive with each request for an actor and decide by.

        Parameters
        ----------
        on_wait : called, in another thread, with a text about the reason of a wait, such as a decision of a node's
            administrator.
        """
        self._placement.run_settings = dict(settings)
        self._tunnel.on_wait = on_wait
        self.report(0, None)

    def report(self, rounds: int, fraction: float | None) -> None:
        """Report the progress of a declared run to the hub, which shows it on its page.

        Parameters
        ----------
        rounds : completed rounds.
        fraction : used fraction of the budget of the run, 0 to 1; None if it is not known.
        """
        from chimera.engines.federation.wire.frames import Progress

        declared = self._placement.run_settings or {}
        strategy, model = (str(dict(declared.get(key, {})).get("name", ""))[:63] for key in ("strategy", "model"))
        self._tunnel.report(Progress(self.key, strategy, model, rounds, fraction))

    def expect(self, actors: Sequence[str]) -> None:
        """Give each of these actors a node of its own, in this order, and wait until ``min_nodes`` of the nodes are connected.

        With ``nodes = "all"``, later actors get the nodes that come later.

        Raises
        ------
        ConfigurationError : there are fewer actors than ``min_nodes``.
        """
        if self.min_nodes is not None and self.min_nodes > len(actors):
            raise ConfigurationError(
                f"engine 'federation', option 'min_nodes': is {self.min_nodes}, but there are {len(actors)} workers"
            )
        for actor, node in zip(actors, self._nodes, strict=False):
            self._placement.reserve(actor, node)
        if self.min_nodes is not None:
            self.wait_for(actors, self.min_nodes)

    @property
    def held(self) -> bool:
        """Whether a call waits for the administrator or the policy of its node."""
        return self._tunnel.held

    def there(self, actor: str) -> float | None:
        """Return the time since which the node of an actor is connected, on the clock `time.monotonic`; None if it is not."""
        present, nodes_by_actor = self._tunnel.present(), self._placement.nodes_by_actor
        if actor not in nodes_by_actor and self._names is None:
            known = {node.url for node in nodes_by_actor.values()}
            if free := sorted(present.keys() - known):
                self._nodes.append(self._node(free[0]))
                self._placement.reserve(actor, self._nodes[-1])
        return present.get(nodes_by_actor[actor].url) if actor in nodes_by_actor else None

    def wait_for(self, actors: Sequence[str], count: int = 1, stop: Callable[[], bool] = lambda: False) -> None:
        """Wait until the nodes of ``count`` of these actors are connected, or ``stop`` returns true; report the wait.

        Raises
        ------
        HubRefusedError : the hub does not accept this driver.
        """

        def enough() -> bool:
            return sum(self.there(actor) is not None for actor in actors) >= count

        reported = enough()
        while not self._tunnel.await_change(enough, _CHECK_INTERVAL_S) and not stop():
            if not reported and self._tunnel.on_wait is not None:
                self._tunnel.on_wait(self._missing(actors, count))
            reported = True

    def _missing(self, actors: Sequence[str], count: int) -> str:
        """Return a text about the nodes that a run waits for."""
        away = [actor for actor in actors if self.there(actor) is None]
        nodes_by_actor = self._placement.nodes_by_actor
        names = sorted(nodes_by_actor[actor].url for actor in away if actor in nodes_by_actor)
        lacking = count - (len(actors) - len(away))
        nodes = counted(lacking, "more node")
        return f"{nodes}; not connected: {', '.join(names)}" if names else nodes


def _nodes(tunnel: Any, names: list[str] | None, wait_s: float) -> list[str]:
    """Wait for the nodes of a run, and return their names."""
    if names is None:
        found = tunnel.wait_for(bool, wait_s)
        if not found:
            raise RunError(f"no node has come to the hub within {wait_s:g} s (option 'wait_s')")
        return sorted(found)
    found = tunnel.wait_for(set(names).issubset, wait_s)
    if missing := [name for name in names if name not in found]:
        raise RunError(
            f"{', '.join(missing)} did not come to the hub within {wait_s:g} s (option 'wait_s'); "
            f"connected: {', '.join(sorted(found)) or 'no node'}"
        )
    return names

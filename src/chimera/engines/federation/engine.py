"""The driver side of a federation."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from chimera.core.engine import ENGINES
from chimera.core.errors import ConfigurationError, RunError
from chimera.engines.http.engine import HttpEngine
from chimera.engines.http.node import Node


@ENGINES.register("federation", requires="websockets", extra="federation")
class FederationEngine(HttpEngine):
    """An engine of actors in nodes that dial out to a hub. The driver dials the same hub.

    It is `HttpEngine` with another way to the nodes. A call is run once, however often connections break: it is repeated until
    its answer has arrived, and the node returns the answer that it has.

    Parameters
    ----------
    hub : address of the hub, ``https://host:port``; default: the one that the driver has joined.
    nodes : names of the nodes, or ``"all"``: those that are connected at the start.
    identity : folder of the driver's identity, which ``chimera node join`` has written for the role requester.
    wait_s : seconds for which the start waits for the nodes, or for the first of all.
    away_s : seconds after which a node that is not connected is lost. A request for an actor there waits as long again.
    timeout_s, health_every_s, most_bytes, keeps_rows, on_answer : see `HttpEngine`.

    Attributes
    ----------
    patience_s : seconds that a run waits for the replacement of a lost worker: no other node has its data.
    """

    def __init__(
        self,
        *,
        hub: str | None = None,
        nodes: Sequence[str] | str = "all",
        identity: str,
        wait_s: float = 60.0,
        away_s: float = 60.0,
        timeout_s: float = 600.0,
        health_every_s: float = 1.0,
        most_bytes: int = 1 << 30,
        keeps_rows: bool = True,
        on_answer: Callable[[str, float], None] | None = None,
    ) -> None:
        positive = {"timeout_s": timeout_s, "health_every_s": health_every_s, "most_bytes": most_bytes}
        for name, value in (positive | {"wait_s": wait_s, "away_s": away_s}).items():
            if not value > 0:
                raise ConfigurationError(f"engine 'federation', option {name!r}: must be above 0, not {value!r}")
        names = None if nodes == "all" else [nodes] if isinstance(nodes, str) else list(nodes)
        if names is not None and (not names or len(set(names)) < len(names)):
            raise ConfigurationError("engine 'federation', option 'nodes': give 'all', or different names of nodes")
        from chimera.engines.federation.connection import TunnelConnection
        from chimera.engines.federation.credentials import Credentials
        from chimera.engines.federation.tunnel import Tunnel

        credentials = Credentials.read(Path(identity).expanduser(), "requester", hub)
        key = secrets.token_hex(16)
        self._tunnel = tunnel = Tunnel(credentials, key, most_bytes=most_bytes, away_s=away_s)
        try:
            found = _nodes(tunnel, names, wait_s)

            def way_to(name: str) -> Callable[[], TunnelConnection]:
                return lambda: TunnelConnection(tunnel, name)

            made = [Node(name, way_to(name), engine_key=key, health_every_s=health_every_s) for name in found]
            remote: dict[str, Any] = {"timeout_s": timeout_s, "retries": 0, "on_answer": on_answer}
            self.patience_s = away_s
            self._set_up(made, key, remote, keeps_rows=keeps_rows, last=tunnel.close)
        except BaseException:
            tunnel.close()
            raise

    def declare(self, settings: Mapping[str, Any], on_wait: Callable[[str], None] | None = None) -> None:
        """Declare the settings of the run, which nodes receive with each request for an actor and decide by.

        Parameters
        ----------
        on_wait : called with a text for what the run waits, such as a decision of a node's administrator, in another thread.
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

"""The driver side of the HTTP engine."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import secrets
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from chimera.core.address import Address
from chimera.core.engine import ENGINES, Disturbance, Resources
from chimera.core.errors import ConfigurationError, MissingExtraError
from chimera.core.trace import TraceRow
from chimera.engines.handle import CONSTRUCT, check_returns
from chimera.engines.http.channels.actor_channels import RemoteChannel
from chimera.engines.http.channels.channel import Channel
from chimera.engines.http.connection import Connection
from chimera.engines.http.node import Node
from chimera.engines.http.placement import Placement
from chimera.engines.http.refs import Call, CallTracker, HttpActor, Ref, first_failure, value_of
from chimera.engines.http.tls import tls_context
from chimera.engines.http.tokens import tokens_of
from chimera.engines.real_time import RealTime
from chimera.engines.thread_context import close_for_threads, open_for_threads

_LEAVING_S = 2.0
_COMPUTING_S = 0.1  # seconds for an actor that executes a call in this process: such a call cannot be stopped


@ENGINES.register("http", requires="httptools", extra="nodes")
class HttpEngine(RealTime):
    """An engine of actors in running nodes, which it reaches over HTTP. It sends no code and no pickle.

    The class of an actor decides where the actor runs:

    - If nodes list the class as hosted, the actor is created in the node with the fewest actors of this engine, or in the
      node that had an actor of the same name before.
    - If the class has ``routes`` (see `Route`), the actor exists already: it is bound to the next node in order.
    - Otherwise the actor runs in a thread of the driver's process, if all nodes report that they do not host the class.

    A class sets ``hosted = True`` if it must never run in the driver, and ``hosted = False`` if it must always run there. It
    names in ``brief`` the methods that take little time: their calls share a request with a waiting call before them.

    Parameters
    ----------
    nodes : addresses of the nodes: ``http://host:port``, one each.
    token : bearer token of the nodes; default: the environment variable CHIMERA_TOKEN, so that no file has to contain it.
    tokens : tokens of single nodes by address; or a TOML file with lines ``"http://host:port" = "..."``. Other nodes get
        ``token``.
    timeout_s : seconds that a call in a node may take. After that its ref raises `TimeLimitError`; the node may continue.
    retries : how often a failed call is sent again; the node may then run it more than once. A call has failed if no process
        listens, the connection broke, the call timed out, or the answer was invalid. It has also failed if the answer had a
        status of 500 or more without an exception of an actor.
    health_every_s : seconds between health checks of each node, which detect deaths between calls.
    tls_ca : file with the certificates that verify https nodes, for instance the nodes' own; default: those of the system.
    tls_client : files with a certificate and its key, for nodes that require client certificates.
    tls_check_host : whether a certificate must name the host of its node; not needed if ``tls_ca`` has the nodes' own.
    max_bytes : size of the largest accepted answer, in bytes.
    keeps_rows : whether the trace is recorded; it grows until it is fetched.
    on_answer : called with the URL of every answered request of an actor, and its duration in seconds.
    """

    nodes_own_data = True
    servers_in_groups = False

    def __init__(
        self,
        *,
        nodes: Sequence[str],
        token: str | None = None,
        tokens: str | Mapping[str, str] | None = None,
        timeout_s: float = 100.0,
        retries: int = 0,
        health_every_s: float = 1.0,
        tls_ca: str | None = None,
        tls_client: Sequence[str] | None = None,
        tls_check_host: bool = True,
        max_bytes: int = 1 << 30,
        keeps_rows: bool = True,
        on_answer: Callable[[str, float], None] | None = None,
    ) -> None:
        for name, value in (("timeout_s", timeout_s), ("health_every_s", health_every_s), ("max_bytes", max_bytes)):
            if not value > 0:
                raise ConfigurationError(f"engine 'http', option {name!r}: must be above 0, not {value!r}")
        if retries < 0:
            raise ConfigurationError(f"engine 'http', option 'retries': must be at least 0, not {retries!r}")
        urls = [nodes] if isinstance(nodes, str) else nodes
        addresses = [Address.of(url, "engine 'http', option 'nodes':") for url in urls]
        if not addresses:
            raise ConfigurationError(
                "engine 'http', option 'nodes': give at least one, such as 'http://127.0.0.1:5001'"
            )
        token = os.environ.get("CHIMERA_TOKEN") or None if token is None else token
        own = tokens_of(addresses, token, tokens)
        if importlib.util.find_spec("httptools") is None:
            raise MissingExtraError("the http engine", "httptools", "nodes")
        key = secrets.token_hex(8)
        remote = {"timeout_s": timeout_s, "retries": retries, "on_answer": on_answer}
        tls = tls_context(tls_ca, tls_check_host, tls_client)
        options: dict[str, Any] = {"engine_key": key, "health_every_s": health_every_s}
        made = [
            Node(address.url, partial(Connection, address, its, tls, max_bytes), **options)
            for address, its in zip(addresses, own, strict=True)
        ]
        self._set_up(made, key, remote, addresses=addresses, keeps_rows=keeps_rows)

    def _set_up(
        self,
        nodes: Sequence[Node],
        key: str,
        remote: Mapping[str, Any],
        *,
        addresses: Sequence[Address] = (),
        keeps_rows: bool,
        last: Callable[[], None] | None = None,
    ) -> None:
        """Start the engine with these nodes.

        Parameters
        ----------
        key : key that distinguishes its actors from those of other engines.
        remote : options of the channels to nodes.
        addresses : addresses that must belong to different nodes.
        last : called at the end of `close`.
        """
        super().__init__()
        self.key = key
        self._nodes = list(nodes)
        self._tracker = CallTracker(self._began_s, keeps_rows)
        self._placement = Placement(self._tracker, self._nodes, addresses, key, remote)
        self._channels: list[Channel] = []
        self._handles: list[HttpActor] = []
        open_for_threads()
        self._end = weakref.finalize(self, _end, self._tracker, self._channels, self._nodes, last)

    def reserve(self, resources: Sequence[Resources], timeout_s: float | None = None) -> None:  # noqa: ARG002
        """Do nothing: nodes have no limit to reserve from."""
        self._check_open()

    def spawn(
        self,
        actor_type: Callable[..., Any],
        /,
        *args: Any,
        resources: Resources | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> HttpActor:
        """Create an actor, or bind a handle to an existing one, and return the handle at once.

        Raises
        ------
        RunError : the class must be hosted, and no reachable node hosts it. Or no node is known to host it, and a node did not
            report its classes within ``timeout_s``.
        """
        self._check_open()
        rank = len(self._handles)
        channel = self._placement.channel(actor_type, name or f"actor {rank}", rank, resources or Resources())
        made = self._call(channel, CONSTRUCT, None, args, kwargs)
        self._channels.append(channel)
        self._handles.append(HttpActor(self, channel))
        if isinstance(channel, RemoteChannel):
            channel.node.join(channel)
        channel.thread.start()
        channel.issue(made)
        return self._handles[rank]

    def put(self, value: Any) -> Ref:
        """Store a value in the driver. It is serialized once, when it is first sent."""
        self._check_open()
        return self._tracker.put(value)

    def get(self, refs: Any, timeout_s: float | None = None) -> Any:
        """Return the value of a ref, or the values of a sequence; arrays are read-only.

        The first failure of a sequence is raised as soon as it is known, also while other refs are pending.
        """
        self._check_open()
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        if isinstance(refs, Sequence):
            if len(refs) > 1:
                self._tracker.await_all(refs, deadline_s)
                if (failure := first_failure(refs)) is not None:
                    raise failure.exception()
            return [value_of(ref, deadline_s) for ref in refs]
        return value_of(refs, deadline_s)

    def wait(self, refs: Iterable[Ref], count: int = 1, timeout_s: float | None = None) -> tuple[list[Ref], list[Ref]]:
        """Return (done, pending) once ``count`` refs are done or the time is over."""
        self._check_open()
        return self._tracker.wait(list(refs), count, None if timeout_s is None else time.monotonic() + timeout_s)

    def when_done(self, refs: Sequence[Ref], then: Callable[[], None]) -> None:
        """Call ``then`` when all these refs are done, in the thread that completes the last one. For event loops."""
        left = itertools.count(len(refs) - 1, -1)  # `next` is atomic between threads

        def one_more() -> None:
            if next(left) == 0:
                then()

        for ref in refs:
            ref.on_resolved(one_more)

    def group(self, actors: Sequence[HttpActor]) -> Any:  # noqa: ARG002
        """Raise ConfigurationError: the nodes cannot reach one another."""
        self._check_open()
        raise ConfigurationError(
            "the http engine has no groups, for its nodes do not reach one another: use a strategy with a server"
        )

    def kill(self, actor: HttpActor) -> None:
        """Drop an actor without waiting for its running call in a node. An actor with routes stays in its node."""
        self._check_open()
        channel = actor._channel
        if self._tracker.die(channel, "was killed") and isinstance(channel, RemoteChannel):
            channel.node.leave(channel)
        channel.interrupt("it was killed")
        channel.end()

    def disturb(self, actor: HttpActor, disturbance: Disturbance) -> None:
        """Delay or slow down the messages to and from the actor, on the driver's side."""
        self._check_open()
        if actor._channel.died_s is None:
            actor._channel.disturb(disturbance)

    def silent(self, after_s: float) -> list[HttpActor]:
        """Return the handles of the living actors without a heartbeat for ``after_s`` seconds."""
        now_s = time.monotonic()
        return [self._handles[channel.rank] for channel in self._channels if channel.silent_s(now_s) >= after_s]

    def trace(self) -> list[TraceRow]:
        """Return the rows of the calls that ended since the last `trace`."""
        rows: list[TraceRow] = []
        with self._tracker.changed:
            for channel in self._channels:
                rows += channel.rows
                channel.rows = []
        return rows

    def lost(self) -> list[HttpActor]:
        """Return the handles of the dead actors, in the order in which their deaths became known."""
        with self._tracker.changed:
            return [self._handles[channel.rank] for channel in self._tracker.deaths]

    def death_cause(self, actor: HttpActor) -> str:
        """Return one line about a lost actor: where it ran, and why it was lost."""
        return f"{actor.name} {actor._channel.death_cause}"

    def call(self, channel: Channel, method: str, /, *args: Any, returns: int | None = None, **kwargs: Any) -> Any:
        """Issue a call. Methods of handles call this."""
        self._check_open()
        check_returns(returns, channel.name, method)
        call = self._call(channel, method, returns, args, kwargs)
        channel.issue(call)
        return call.refs[0] if returns is None else call.refs

    def follow(self, actor: HttpActor, method: str) -> Ref | None:
        """Issue a call without arguments if a call of the actor has not ended, so that both can be one request; else None."""
        return self.call(actor._channel, method) if actor._channel.calls else None

    def _call(
        self, channel: Channel, method: str, returns: int | None, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Call:
        call = Call(channel, method, returns, args, kwargs)
        channel.prepare(call)
        return call


def _end(
    tracker: CallTracker, channels: list[Channel], nodes: list[Node], last: Callable[[], None] | None = None
) -> None:
    for channel in channels:
        tracker.die(channel, "ended with its engine")
        channel.interrupt("the engine was closed")
        channel.end()
    for node in nodes:
        node.end()
    until_s = time.monotonic() + _LEAVING_S
    for channel in channels:
        left_s = until_s - time.monotonic()
        with contextlib.suppress(RuntimeError):  # the thread was not started
            channel.thread.join(max(min(left_s, _COMPUTING_S) if channel.computes else left_s, 0.01))
    for node in nodes:
        node.join_thread(max(until_s - time.monotonic(), 0.1))
    if last is not None:
        last()
    close_for_threads()

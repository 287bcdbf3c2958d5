"""A node of a federation: it dials the hub, and runs the calls that its gate allows."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from chimera.core.errors import ActorLost, DataError, PrivacyError
from chimera.engines.federation.credentials import Credentials
from chimera.engines.federation.wire.frames import PROTOCOL, Ask, Hello
from chimera.engines.federation.wire.link import Link, ignore_ends
from chimera.engines.federation.wire.pages import keep_pages
from chimera.engines.handle import CONSTRUCT
from chimera.engines.http import wire
from chimera.engines.http.hosting.dispatch import actor_of, dispatch
from chimera.engines.http.hosting.host import Host
from chimera.engines.http.hosting.hosted_actor import Reply, call_arguments, error_reply
from chimera.engines.http.wire_reader import MOST_VALUES
from chimera.federation.node.calls import Calls, Finished
from chimera.federation.node.gate import Call, Gate, Held, Refused, Requester, Spending
from chimera.federation.node.store import Kept, Store
from chimera.version import __version__

_FORGET_S = 3600.0  # seconds after which the actors of a driver that is away are dropped
_MOST_ACTORS = 10_000  # of which the kind is known
_ASK_AGAIN_S = 1.0  # a held call asks the gate again


class Service:
    """A running node.

    Parameters
    ----------
    credentials : its identity; the folder also keeps its answers.
    kinds : the classes of which drivers may create actors, see `Host`.
    gate : decides on each call and answer.
    joined : called whenever the connection to the hub was opened.
    """

    def __init__(
        self,
        credentials: Credentials,
        kinds: Mapping[str, Callable[..., Any]],
        gate: Gate,
        joined: Callable[[], None] = lambda: None,
    ) -> None:
        self._credentials, self._gate, self._joined = credentials, gate, joined
        self._host = Host(kinds, forget_after_s=_FORGET_S)
        self._kinds: dict[tuple[str, str], str] = {}

    async def run(self) -> None:
        """Serve until the task is cancelled.

        Raises
        ------
        HubRefusedError : the hub does not accept this node.
        """
        self._loop = asyncio.get_running_loop()
        self._store = Store(self._credentials.folder)
        self._calls = _Joining(self._store, self._run, self._joined)
        try:
            await Link(self._credentials, Hello(PROTOCOL, secrets.token_hex(8), __version__), self._calls).run()
        finally:
            self._calls.close()
            self._host.close()
            self._store.close()

    def _run(self, ask: Ask, body: bytes | bytearray, finished: Finished) -> None:
        if ask.verb != "POST":
            self._dispatch(ask, body, lambda reply: finished(Kept.of(reply)))
            return
        actor, method = actor_of(ask.path)
        own = actor.startswith(f"{ask.run}.")
        if (
            method and own and not self._host.has(actor)
        ):  # of a process that has ended, for instance: nothing to decide on
            finished(Kept.of(error_reply(404, ActorLost(f"there is no actor {actor!r} here"))))
            return
        requester, call = Requester(ask.requester, ask.fingerprint), self._call(ask, body)
        decision = self._gate.request(requester, call)
        if isinstance(decision, Held):
            self._loop.call_soon_threadsafe(self._loop.call_later, _ASK_AGAIN_S, self._decide_again, ask, body)
            return
        if call.method == CONSTRUCT:  # any other call needs an actor, which ends with this process
            self._store.begin(ask.run, ask.number)
        if isinstance(decision, Refused):
            refused = error_reply(403, PrivacyError(decision.reason))
            finished(self._store.finish(ask.run, ask.number, refused))
            return

        def answered(reply: Reply) -> None:
            """Keep the answer, in the thread of the actor, before it may leave."""
            try:
                decision = self._gate.answer(requester, call, len(reply.body), _spent(reply))
                if isinstance(decision, Refused):
                    reply = error_reply(403, PrivacyError(decision.reason))
                finished(self._store.finish(ask.run, ask.number, reply))
            except Exception as error:  # the store or the ledger cannot be written, for instance
                finished(Kept.of(error_reply(503, error)))

        self._dispatch(ask, body, answered)

    def _decide_again(self, ask: Ask, body: bytes | bytearray) -> None:
        """Ask the gate again about a held call, if the driver still waits."""
        if self._calls.wants(ask):
            self._calls.start(ask, body)

    def _dispatch(self, ask: Ask, body: bytes | bytearray, done: Callable[[Reply], None]) -> None:
        dispatch(self._host, ask.run, ask.verb, ask.path, ask.type, body, done)

    def _call(self, ask: Ask, body: bytes | bytearray) -> Call:
        """Return what the gate decides on. The kind of an actor is that of the call that created it."""
        actor, method = actor_of(ask.path)
        place, size = (ask.run, actor), len(body)
        unread = Call(ask.run, ask.number, "", method or CONSTRUCT, actor=actor, size=size)
        try:
            request = wire.unpack(body, most_values=MOST_VALUES)
            given, named, _ = call_arguments(request)
        except (DataError, AttributeError):
            return unread  # the host refuses it
        settings = None
        if not method:
            kind, settings = request.get("kind"), request.get("settings")
            if not isinstance(kind, str):
                return unread
            if len(self._kinds) >= _MOST_ACTORS:
                self._kinds.clear()
            self._kinds[place] = kind
        kind = self._kinds.get(place, "")
        return Call(
            ask.run, ask.number, kind, method or CONSTRUCT, settings if isinstance(settings, dict) else None, actor,
            tuple(given), named, size,
        )  # fmt: skip


def _spent(reply: Reply) -> Spending:
    """Return the cost of a call, which its answer states."""
    if reply.content_type != wire.CONTENT_TYPE:
        return Spending()
    return Spending(int(wire.unpack(reply.body, open_inner=False)["cost"]["samples"]))


class _Joining(Calls):
    """Calls that report when the connection is open."""

    def __init__(self, store: Store, run: Any, report: Callable[[], None]) -> None:
        super().__init__(store, run)
        self._report = report

    def joined(self, port: Any, present: Any) -> None:
        super().joined(port, present)
        self._report()


def serve(service: Service) -> None:
    """Run a node until SIGINT or SIGTERM.

    Raises
    ------
    HubRefusedError : the hub does not accept this node.
    """
    import signal

    async def main() -> None:
        task = asyncio.ensure_future(service.run())
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(ignore_ends)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, task.cancel)
        try:
            await task
        except asyncio.CancelledError:
            return

    keep_pages()
    asyncio.run(main())

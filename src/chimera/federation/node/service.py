"""A node of a federation: it dials the hub, and runs the calls that its gate allows."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from chimera.core.errors import ActorLost, ChimeraError, UnavailableError
from chimera.engines.federation.credentials import Credentials
from chimera.engines.federation.wire.frames import PROTOCOL, REVISION, Budget, CallRequest, Header, Hello, Revoked
from chimera.engines.federation.wire.link import Link, ignore_ends
from chimera.engines.federation.wire.pages import keep_pages
from chimera.engines.http.hosting.dispatch import actor_of, dispatch, refusal
from chimera.engines.http.hosting.host import Body, Host, read_body
from chimera.engines.http.hosting.hosted_actor import Reply, error_reply
from chimera.engines.http.node import ACTORS
from chimera.federation.node.budget import BudgetReports
from chimera.federation.node.calls import Calls, Finished
from chimera.federation.node.gated_request import GatedRequest
from chimera.federation.node.revocations import Revocations
from chimera.federation.node.store import Kept, Store
from chimera.federation.policy.reading import CallReader
from chimera.federation.policy.requests import Decides, Held, Later, Requester
from chimera.version import __version__

_FORGET_S = 3600.0  # seconds after which the actors of a driver that is away are dropped
_WAIT_REPORT_INTERVAL_S = (
    1.0  # seconds between reports of a waiting call to its driver, and between decisions about a call that is held
)
_MAX_WAIT_S = 30.0  # maximum seconds until the gate decides again: clocks are set, and machines sleep
_MAX_WAITING_OF_REQUESTER = 256  # so that it cannot block others
_MAX_WAITING, _MAX_WAITING_BYTES = 10_000, 1 << 30  # of all waiting calls together


class Service:
    """A running node.

    Parameters
    ----------
    credentials : its identity; the folder also keeps its answers.
    kinds : the classes of which drivers may create actors, see `Host`.
    gate : decides on each call and answer.
    joined : called whenever the connection to the hub was opened.
    on_held : called with the number and the requester of each run that waits for the administrator.
    revocations : learns which certificates are revoked; default: those of the folder.
    renewed : called with each renewed certificate of the node, in PEM.
    budget : returns the budget of epsilon for the hub; None: the hub gets no report.
    """

    def __init__(
        self,
        credentials: Credentials,
        kinds: Mapping[str, Callable[..., Any]],
        gate: Decides,
        joined: Callable[[], None] = lambda: None,
        on_held: Callable[[int, str], None] | None = None,
        revocations: Revocations | None = None,
        renewed: Callable[[bytes], None] = lambda _: None,
        budget: Callable[[], Budget] | None = None,
    ) -> None:
        self._credentials, self._gate, self._joined = credentials, gate, joined
        self._host = Host(kinds, forget_after_s=_FORGET_S)
        self._reader, self._on_held = CallReader(), on_held
        self._revocations = revocations or Revocations(credentials.folder)
        self._renewed, self._budget = renewed, budget
        self._held: set[tuple[str, int]] = set()
        self._waiting: list[CallRequest] = []  # a driver may use a number again

    async def run(self) -> None:
        """Serve until the task is cancelled.

        Raises
        ------
        HubRefusedError : the hub does not accept this node.
        """
        self._loop = asyncio.get_running_loop()
        self._store = Store(self._credentials.folder)
        reports = BudgetReports(self._budget)
        self._calls = _HubCalls(self._store, self._run, self._joined, self._revocations, reports)
        hello = Hello(PROTOCOL, secrets.token_hex(8), __version__, revision=REVISION)
        reporting = asyncio.create_task(reports.run())
        try:
            await Link(self._credentials, hello, self._calls, self._renewed).run()
        finally:
            reporting.cancel()
            self._calls.close()
            self._host.close()
            self._store.close()

    def _run(self, request: CallRequest, body: bytes | bytearray, finished: Finished) -> None:
        if request.verb != "POST":  # the request reads the driver's own actors, or drops them
            self._dispatch(request, body, lambda reply: finished(Kept.of(reply)))
            return
        actor, method = actor_of(request.path)
        if (
            method and actor.startswith(f"{request.run}.") and not self._host.has(actor)
        ):  # no call of the gate: a lost actor must not spend epsilon
            finished(Kept.of(refusal(ActorLost(f"there is no actor {actor!r} here"))))
            return
        requester = Requester(request.requester, request.fingerprint)
        read: Body = body
        with contextlib.suppress(ChimeraError):  # the gate or the host reports that the body cannot be read
            read = read_body(body)  # once, so the actor gets the content that the gate has checked
        key = request.run, request.number
        gated = GatedRequest(self._gate, requester, self._reader.read_all(*key, actor, method, read))
        if (waits := gated.decide()) is not None:
            self._loop.call_soon_threadsafe(self._hold, request, body, waits, finished)
            return
        run = gated.allowed(method, read)
        if run is None:  # the store does not keep it: refused requests must not fill the disk
            finished(Kept.of(gated.reply(None).whole()))
            return
        if not method:  # any other call needs an actor, which ends with this process
            self._store.begin(*key)

        def answered(reply: Reply) -> None:
            """Keep the answer, in the thread of the actor, before it may leave."""
            try:
                finished(self._store.finish(*key, gated.reply(reply).whole()))
            except Exception as error:  # for example, the store or the ledger cannot be written
                finished(Kept.of(error_reply(503, UnavailableError(f"the node cannot answer: {type(error).__name__}"))))

        methods, read = run
        if methods != method:
            request = msgspec.structs.replace(request, path=f"{ACTORS}/{quote(actor, safe='')}/{methods}")
        self._dispatch(request, read, answered)

    def _hold(self, request: CallRequest, body: bytes | bytearray, decision: Held | Later, finished: Finished) -> None:
        """Hold a call for the administrator or the policy; decide about it again while the driver waits."""
        size = sum(each.size for each in self._waiting) + request.size
        own = sum(each.requester == request.requester for each in self._waiting)
        full = own >= _MAX_WAITING_OF_REQUESTER or len(self._waiting) >= _MAX_WAITING
        if full or size > _MAX_WAITING_BYTES:
            finished(Kept.of(error_reply(503, UnavailableError("too many calls wait at this node: ask again later"))))
            return
        after_s = _WAIT_REPORT_INTERVAL_S
        if isinstance(decision, Later):
            after_s = min(max(float(decision.wait_s), _WAIT_REPORT_INTERVAL_S), _MAX_WAIT_S)
        elif (waiting_run := (request.run, decision.number)) not in self._held:
            self._held.add(waiting_run)
            if self._on_held is not None:
                self._on_held(decision.number, request.requester)
        self._waiting.append(request)
        self._report_wait(request, body, decision, self._loop.time() + after_s)

    def _report_wait(
        self, request: CallRequest, body: bytes | bytearray, decision: Held | Later, until_s: float
    ) -> None:
        """Report once a second that a call waits; decide about it again at ``until_s``, a time of the loop."""
        left_s = until_s - self._loop.time()
        report = (decision.number,) if isinstance(decision, Held) else (0, decision.reason, decision.wait_s)
        waited_for = self._calls.hold(request, *report)
        if waited_for and left_s > 0:
            self._loop.call_later(
                min(left_s, _WAIT_REPORT_INTERVAL_S), self._report_wait, request, body, decision, until_s
            )
            return
        self._waiting.remove(request)
        if waited_for:
            self._calls.start(request, body)

    def _dispatch(self, request: CallRequest, body: Body, done: Callable[[Reply], None]) -> None:
        dispatch(self._host, request.run, request.verb, request.path, request.type, body, done)


class _HubCalls(Calls):
    """Calls, and the messages between node and hub about the connection, revoked certificates and the budget."""

    def __init__(
        self, store: Store, run: Any, report: Callable[[], None], revocations: Revocations, budget: BudgetReports
    ) -> None:
        super().__init__(store, run)
        self._report, self._revocations, self._budget = report, revocations, budget

    def joined(self, port: Any, present: Any) -> None:
        super().joined(port, present)
        self._budget.joined(port, present)
        self._report()

    def parted(self) -> None:
        super().parted()
        self._budget.parted()

    def received(self, header: Header, payload: memoryview) -> None:
        if isinstance(header, Revoked):
            self._revocations.learn(header.certificates)  # an error ends the connection: no later call is run
        else:
            super().received(header, payload)


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

"""The driver's side of a federation: calls of nodes travel through the hub, and are repeated until they are answered."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from chimera.core.errors import RunError
from chimera.engines.federation.calls import Call, Calls
from chimera.engines.federation.credentials import Credentials
from chimera.engines.federation.wire.frames import (
    PROTOCOL,
    REVISION,
    Acknowledged,
    Answer,
    CallPending,
    ConnectedNodes,
    Header,
    Hello,
    Progress,
    pack,
)
from chimera.engines.federation.wire.link import HubRefusedError, Link, ignore_ends
from chimera.engines.federation.wire.pages import keep_pages
from chimera.engines.federation.wire.port import Port
from chimera.engines.http import connection as http
from chimera.version import __version__

WAIT_REPORT_LIMIT_S = 10.0  # seconds; a node reports each second that a call waits for its administrator or policy
_REPORT_S = 1.0  # longest time between the progress of a run and its report to the hub


class Tunnel:
    """The connection of one run to its hub, with a thread of its own.

    Parameters
    ----------
    run : key of the run.
    max_bytes : maximum size of an answer, in bytes.
    away_s : seconds after which a node that is not connected counts as lost.

    Attributes
    ----------
    on_wait : None, or called with a text about the reason of a wait, in the thread of the tunnel.
    """

    def __init__(self, credentials: Credentials, run: str, *, max_bytes: int, away_s: float) -> None:
        self._away_s = away_s
        self._hub = credentials.hub
        self.on_wait: Callable[[str], None] | None = None
        self._waits: dict[tuple[str, int | str], float] = {}  # when a node last reported that a run waits, and for what
        self._progress: Progress | None = None
        self._reporting = False
        self._revision = 0  # of the hub
        self._gone_s: dict[str, float] = {}
        self._came_s: dict[str, float] = {}
        self._began_s = time.monotonic()
        self._refused: Exception | None = None
        self._changed = threading.Condition()  # with a re-entrant lock
        self._starting, self._new = threading.Lock(), list[Call]()  # calls that the thread of the tunnel has not seen
        self._loop = asyncio.new_event_loop()
        self._calls = Calls(run, max_bytes, self._loop)
        self._link = Link(credentials, Hello(PROTOCOL, run, __version__, run, REVISION), self)
        self._task: asyncio.Task[Exception | None] | None = None
        self._thread = threading.Thread(target=self._live, name="chimera-federation", daemon=True)
        keep_pages()
        self._thread.start()

    # Methods for other threads.

    def wait_for(self, enough: Callable[[set[str]], bool], timeout_s: float) -> set[str]:
        """Wait until the connected nodes are enough, or the time is over; return their names.

        Raises
        ------
        RunError : the hub cannot be reached within the time.
        HubRefusedError : the hub does not accept this driver.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._refused or (self._calls.port and enough(set(self._calls.boots))), timeout_s
            )
            if self._refused is not None:
                raise self._refused
            if self._calls.port is None:
                raise RunError(f"the hub {self._hub} cannot be reached: {self._link.reason or 'no answer'}")
            return set(self._calls.boots)

    def present(self) -> dict[str, float]:
        """Return the connected nodes, each with the time since which it has been connected without a break."""
        with self._changed:
            return {name: self._came_s[name] for name in self._calls.boots}

    def await_change(self, enough: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until ``enough`` returns true, also while the hub is unreachable; return whether it did.

        Raises
        ------
        HubRefusedError : the hub does not accept this driver.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._refused or enough(), timeout_s)
            if self._refused is not None:
                raise self._refused
            return enough()

    @property
    def held(self) -> bool:
        """Whether a call waits for the administrator or the policy of its node."""
        since_s = time.monotonic() - WAIT_REPORT_LIMIT_S
        return any(call.waits_s > since_s for call in self._calls.all())

    def renew(self, node: str) -> None:
        """Count a node as newly connected."""
        with self._changed:
            self._came_s[node] = time.monotonic()

    def start(self, call: Call) -> None:
        """Send a call, now or when its node is connected.

        Raises
        ------
        Unreachable : the tunnel is closed.
        """
        with self._starting:
            try:
                if not self._new:  # otherwise the thread of the tunnel is awake, or will be soon
                    self._loop.call_soon_threadsafe(self._start_new)
            except RuntimeError as error:  # the loop was closed
                raise http.Unreachable(str(self._refused)) from error
            self._new.append(call)  # last: after Ctrl-C in this block, later calls still wake the thread

    def drop(self, call: Call) -> None:
        """Note that no thread waits for a call any more."""
        with contextlib.suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(self._calls.end, call, None)

    def report(self, progress: Progress) -> None:
        """Report the progress of the run to the hub, soon."""
        with contextlib.suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(self._report, progress)

    def absent(self, node: str, since_s: float = 0.0) -> str:
        """Return why a node counts as lost; an empty text if it does not.

        Parameters
        ----------
        since_s : when the caller began to wait for the node. A node counts as lost only if the caller has waited ``away_s``
            seconds, too.
        """
        if self._refused is not None:
            return str(self._refused)
        gone_s = max(self._gone_s.get(node, self._began_s), since_s)
        if node in self._calls.boots or time.monotonic() - gone_s < self._away_s:
            return ""
        reason = (
            f"the hub {self._hub} cannot be reached: {self._link.reason}"
            if self._calls.port is None
            else "it is not connected"
        )
        return f"{reason} for {self._away_s:g} s"

    def close(self) -> None:
        """Close the connection, and end the thread."""
        if self._thread.is_alive():
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stop)
        self._thread.join()

    # Methods of `Peer`, and others in the thread of the loop.

    def _start_new(self) -> None:
        with self._starting:
            new, self._new = self._new, []
        self._calls.start(new)

    @property
    def busy(self) -> bool:
        """Whether calls wait for answers."""
        return bool(self._calls)

    def joined(self, port: Port, present: ConnectedNodes) -> None:
        """Repeat the calls without an answer."""
        with self._changed:
            self._calls.port, self._revision = port, present.revision
            self._calls.boots = {}
        self._update(present)
        self._send_progress()

    def parted(self) -> None:
        """Note since when no node can be reached."""
        with self._changed:
            now_s = time.monotonic()
            self._gone_s |= dict.fromkeys(self._calls.boots, now_s)
            self._calls.port, self._calls.boots = None, {}

    def received(self, header: Header, payload: memoryview) -> None:
        """Handle a frame of the hub or of a node."""
        if isinstance(header, Answer):
            self._calls.answered(header, payload)
        elif isinstance(header, Acknowledged):
            self._calls.took(header)
        elif isinstance(header, ConnectedNodes):
            self._update(header)
        elif isinstance(header, CallPending) and (call := self._calls.find(header.number, header.node)) is not None:
            call.waits_s = time.monotonic()
            call.policy_s = min(call.policy_s, call.waits_s) if header.reason else math.inf
            self._report_waits(header)

    def _report_waits(self, header: CallPending) -> None:
        node, asked = header.node, header.asked
        if header.reason:
            hours, minutes = divmod(-(-header.wait_s // 60), 60)
            what = "hours" if header.reason == "hours" else "limits of a day"
            text = f"the {what} of the policy of {node}, which allows requests again in {hours} h {minutes} min"
        else:
            text = f"the administrator of {node}, who decides about run {asked} there: chimera node approve {asked}"
        reason, now_s = (node, header.reason or asked), time.monotonic()
        reported_s, self._waits[reason] = self._waits.get(reason, -math.inf), now_s
        if now_s - reported_s > WAIT_REPORT_LIMIT_S and self.on_wait is not None:
            self.on_wait(text)

    def _update(self, present: ConnectedNodes) -> None:
        with self._changed:
            for name in present.gone:
                if self._calls.boots.pop(name, None) is not None:
                    self._gone_s[name] = time.monotonic()
            for name, boot in present.nodes.items():
                if self._calls.boots.get(name) != boot:
                    self._came_s[name] = time.monotonic()
            self._calls.boots |= present.nodes
            self._changed.notify_all()
        self._calls.ask_again(present.nodes)

    def _report(self, progress: Progress) -> None:
        self._progress = progress
        if not self._reporting:
            self._reporting = True
            self._loop.call_later(_REPORT_S, self._send_progress)

    def _send_progress(self) -> None:
        self._reporting = False
        if self._progress is not None and self._calls.port is not None and self._revision:
            self._calls.port.post(pack(self._progress))

    def _live(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.set_exception_handler(ignore_ends)
        try:
            self._loop.run_until_complete(self._run())
        finally:
            self._loop.close()

    async def _run(self) -> None:
        self._task = asyncio.ensure_future(_ended(self._link.run()))
        error = await self._task
        with self._changed:
            self._refused = error or HubRefusedError("the connection to the hub was closed")
            self._changed.notify_all()
        self._calls.end_all(str(self._refused))

    def _stop(self) -> None:
        self._calls.confirm_answers()
        if self._progress is not None:
            self._progress = msgspec.structs.replace(self._progress, ended=True)
            self._send_progress()
        if self._task is not None:
            self._loop.call_later(0.05, self._task.cancel)  # after the last confirmations


async def _ended(work: Coroutine[Any, Any, None]) -> Exception | None:
    """Return the exception that ended this work; None if it was cancelled."""
    try:
        await work
    except asyncio.CancelledError:
        return None
    except Exception as error:
        return error
    return None

"""A federation in the test's own process: a hub, nodes and drivers in threads, over TLS on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import conformance.actors
from chimera.engines.federation import FederationEngine
from chimera.engines.federation.credentials import Credentials
from chimera.federation.hub.server import Hub
from chimera.federation.identity.invitations import Invitation
from chimera.federation.identity.join import join
from chimera.federation.node.service import Service
from chimera.federation.policy.requests import Allowed, Call, Decides, Decision, Requester, Spending

LIMIT_S = 30.0
KINDS = {
    f"{kind.__module__}.{kind.__qualname__}": kind
    for _, kind in inspect.getmembers(conformance.actors, inspect.isclass)
    if kind.__module__ == conformance.actors.__name__
}


def until(true: Callable[[], Any]) -> None:
    """Wait for a condition that no event reports."""
    end_s = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < end_s
        time.sleep(0.01)


class AllowAll:
    """A gate that runs every call."""

    def request(self, requester: Requester, call: Call) -> Decision:
        return Allowed()

    def answer(self, requester: Requester, call: Call, answer_bytes: int, spent: Spending) -> Decision:
        return Allowed()


class Running:
    """A task in an event loop of its own, in a thread.

    Attributes
    ----------
    error : the exception that ended it.
    """

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.error: BaseException | None = None
        self._work = work
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()
        assert self._ready.wait(LIMIT_S)

    def _live(self) -> None:
        try:
            asyncio.run(self._main())
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            self.error = error

    async def _main(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._ready.set()
        await self._work()

    def ended(self, within_s: float = LIMIT_S) -> BaseException | None:
        """Wait for its end, and return its exception."""
        self._thread.join(within_s)
        assert not self._thread.is_alive(), "it still runs"
        return self.error

    def stop(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()


class Federation:
    """A hub in a folder, and its members.

    Parameters
    ----------
    options : further options of the hub.

    Attributes
    ----------
    services : the last service of each node, by the name of the node.
    """

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder, self._options = folder, options
        self.services: dict[str, Service] = {}
        self.stack = contextlib.ExitStack()
        self._port = 0
        self.start_hub()

    def start_hub(self) -> None:
        self.hub = Hub(self.folder / "hub", port=self._port, **self._options)
        listening = threading.Event()

        def started(url: str) -> None:
            self.url, self._port = url, int(url.rpartition(":")[2])
            listening.set()

        self.running_hub = Running(lambda: self.hub.run(started))
        assert listening.wait(LIMIT_S), self.running_hub.error

    def stop_hub(self) -> None:
        self.running_hub.stop()
        self.hub.state.close()

    def code(self, role: Any, name: str) -> str:
        invitation = Invitation.new(self.hub.authority.fingerprint, own_certificate=True)
        self.hub.state.invite(role, name, invitation.digest)
        return invitation.code

    def join(self, role: Any, name: str) -> Credentials:
        return join(self.url, self.code(role, name), self.folder / name)

    def node(
        self, credentials: Credentials | str, gate: Decides | None = None, kinds: Any = KINDS, budget: Any = None
    ) -> Running:
        """Start a node, and wait until it is connected or has ended."""
        known = self.join("node", credentials) if isinstance(credentials, str) else credentials
        connected = threading.Event()
        service = Service(known, kinds, gate or AllowAll(), connected.set, budget=budget)
        self.services[known.name] = service
        running = Running(service.run)
        while not connected.wait(0.01) and running.error is None:
            pass
        self.stack.callback(running.stop)
        return running

    def engine(self, name: str = "alice", **options: Any) -> FederationEngine:
        folder = self.folder / name
        if not folder.exists():
            self.join("requester", name)
        return FederationEngine(identity=str(folder), **{"hub": self.url, "wait_s": LIMIT_S} | options)

    def close(self) -> None:
        self.stack.close()
        if self.running_hub._thread.is_alive():
            self.stop_hub()


@contextlib.contextmanager
def federation(folder: Path, *names: str, **options: Any) -> Iterator[Federation]:
    """Run a hub with these options, with nodes of these names."""
    made = Federation(folder, **options)
    try:
        for name in names:
            made.node(name)
        yield made
    finally:
        made.close()

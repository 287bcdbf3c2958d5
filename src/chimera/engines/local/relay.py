"""The driver's side of calls between actors: a thread that receives the requests of actors and issues their calls."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

from chimera.core.errors import RunError
from chimera.core.pickling import unmarshalled
from chimera.engines.failure import Failure
from chimera.engines.local.calls import Calls
from chimera.engines.local.process import Out
from chimera.engines.local.refs import Channel, Ref
from chimera.engines.shared_memory.memory import ANSWER_WORDS, TICKET, Memory, fence
from chimera.engines.shared_memory.notifier import Notifier

Issue: TypeAlias = Callable[[list[Out]], list[Ref]]
"""Creates refs of values that will be in these slots."""

_MAX_REQUEST_BYTES = 1 << 20
_RETRY_S = 1e-3


class Relay:
    """Holds the refs of actors until the actors delete them or die.

    Attributes
    ----------
    actor_socket : the socket to which actors send their requests.
    """

    def __init__(self, calls: Calls, memory: Memory, notifier: Notifier, channels: list[Channel]) -> None:
        self._calls, self._memory, self._notifier, self._channels = calls, memory, notifier, channels
        self._socket, self.actor_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._held: dict[int, dict[int, Ref]] = {}
        self._postponed: dict[
            int, deque[list[Any]]
        ] = {}  # by caller: requests without room at present, and later requests
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="chimera-relay", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Make the thread check for deaths."""
        with contextlib.suppress(OSError):
            self.actor_socket.send(b"")

    def stop(self) -> None:
        """End the thread, and release everything."""
        self._ending = True
        self.wake()
        self._thread.join()
        self._held.clear()
        self._socket.close()
        self.actor_socket.close()

    def _run(self) -> None:
        timeout_s: float | None = None
        while True:
            waits = self._calls.send_backlogs() or bool(self._postponed)
            if timeout_s != (timeout_s := _RETRY_S if waits else None):
                self._socket.settimeout(timeout_s)
            try:
                request = self._socket.recv(_MAX_REQUEST_BYTES)
            except TimeoutError:
                request = b""
            if self._ending:
                return
            if request:
                self._take(unmarshalled(request))
            else:
                self._retry()

    def _take(self, request: list[Any]) -> None:
        caller = request[0]
        if caller not in self._held and self._channels[caller - 1].dead:
            return  # the caller died while another death was handled: its refs are gone, and no process waits for the answer
        if caller in self._postponed or not self._serve(request):
            self._postponed.setdefault(caller, deque()).append(request)

    def _retry(self) -> None:
        for caller, requests in list(self._postponed.items()):
            while requests and self._serve(requests[0]):
                requests.popleft()
            if not requests:
                del self._postponed[caller]
        for caller in list(self._held):
            if self._channels[caller - 1].dead and caller not in self._postponed:
                del self._held[caller]

    def _serve(self, request: list[Any]) -> bool:
        """Execute a request and return True; return False if there is no room for it at present."""
        caller, dropped, new_call, grants = request
        held = self._held.setdefault(caller, {})
        for entry in dropped:
            held.pop(entry, None)
        request[1] = ()
        if new_call is not None and not self._issue(caller, held, *new_call):
            return False
        request[2] = None
        channel = self._channels[caller - 1]

        def grant(outs: list[Out]) -> list[Ref]:
            return [Ref(channel, slot, generation, "put", 0) for slot, generation in outs]

        if grants and not self._answer(caller, held, grants, channel, "put", grant):
            return False
        fence()
        if self._memory.own.awaited[caller]:
            self._notifier.ring(caller)
        return True

    def _issue(
        self,
        caller: int,
        held: dict[int, Ref],
        target: int,
        method: str,
        returns: int | None,
        results: list[tuple[int, int]],
        entries: list[int | None],
        named: dict[str, int],
        plain: bytes | int | None,
    ) -> bool:
        channel, calls = self._channels[target - 1], self._calls
        if not calls.has_room(channel):
            return False

        def issue(outs: list[Out]) -> list[Ref]:
            refs = [None if entry is None else calls.arrival(held[entry], channel) for entry in entries]
            kwargs = {name: calls.arrival(held[entry], channel) for name, entry in named.items()}
            rest = calls.arrival(held[plain], channel) if isinstance(plain, int) else plain
            return calls.issue(channel, method, returns, outs, refs, kwargs, rest)

        return self._answer(caller, held, results, channel, method, issue)

    def _answer(
        self,
        caller: int,
        held: dict[int, Ref],
        results: list[tuple[int, int]],
        channel: Channel,
        method: str,
        issue: Issue,
    ) -> bool:
        """Pass slots of ``channel`` to ``issue``, and answer the caller; return False if there are none at present."""
        with self._calls.lock:
            try:
                outs = channel.new_slots(len(results))
            except RunError as error:
                if channel.expects_slots or self._calls.own.is_full:
                    return False
                failed = self._calls.put(Failure(error, channel.name, method))
                self._write_places(caller, results, failed.channel, [(failed.slot, failed.generation)] * len(results))
                held.update((entry, failed) for entry, _ in results)
                self._notifier.ring(caller)
                return True
            self._write_places(caller, results, channel, outs)  # before the call is issued: its end wakes the caller
            held.update((entry, ref) for (entry, _), ref in zip(results, issue(outs), strict=True))
            if channel.dead:
                self._notifier.ring(caller)
        return True

    def _write_places(self, caller: int, results: list[tuple[int, int]], channel: Channel, outs: list[Out]) -> None:
        """Write the places of the results of the next call of ``channel`` for the caller."""
        answers = self._memory.region(caller).answers
        for (entry, ticket), (slot, generation) in zip(results, outs, strict=True):
            at = entry * ANSWER_WORDS + TICKET
            for word, value in enumerate((channel.actor, slot, generation, channel.issued), at + 1):
                answers[word] = value
            fence()
            answers[at] = ticket

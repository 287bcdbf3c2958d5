"""A node as the driver knows it, and the thread that checks whether it is alive."""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from chimera.core.errors import TimeLimitError
from chimera.engines.http.connection import Answer, InvalidAnswer, Unreachable
from chimera.engines.http.failure import plain_text
from chimera.engines.http.routes import document_of
from chimera.engines.http.transport import Transport

if TYPE_CHECKING:
    from chimera.engines.http.channels.actor_channels import RemoteChannel

ACTORS = "/v1/chimera/actors"
_HEALTH = "/health"
_PATIENCE_S = 2.0
"""Time limit of a health check, in seconds. A node that does not answer in time is silent, not dead."""


class Node:
    """A node.

    Parameters
    ----------
    url : its address or name, used in all messages.
    connection : returns a new connection to the node, which is not open yet.
    engine_key : key that distinguishes the actors of this engine from those of others.
    health_every_s : seconds between health checks while the node has actors of this engine.
    """

    def __init__(
        self, url: str, connection: Callable[[], Transport], *, engine_key: str, health_every_s: float
    ) -> None:
        self.url, self.connection = url, connection
        self._key, self._every_s = engine_key, health_every_s
        self._lock = threading.Lock()
        self._channels: list[RemoteChannel] = []
        self._kinds: frozenset[str] | None = None
        self._joins = False  # reported with the kinds
        self._health: dict[str, Any] | None = None
        self._seen_s = 0.0
        self._hosts = False
        self._commands: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._health_connection = self.connection()

    @property
    def actors(self) -> int:
        """The number of actors of this engine in the node."""
        return len(self._channels)

    def kinds(self, timeout_s: float | None = None) -> frozenset[str] | str:
        """Return the names of the classes that it hosts, or the reason why it did not report them.

        Parameters
        ----------
        timeout_s : time limit of the request, in seconds; default: that of a health check.
        """
        if self._kinds is None:
            connection = self.connection()
            try:
                limit_s = _PATIENCE_S if timeout_s is None else timeout_s
                answer = connection.request("GET", ACTORS, timeout_s=limit_s, idempotent=True)
                names: Any = []  # a node that knows the documented routes only
                joins: Any = False
                if answer.status != HTTPStatus.NOT_FOUND:
                    document = document_of(answer)
                    if answer.status != HTTPStatus.OK:
                        return f"{self.url} answered {answer.status}: {plain_text(str(document.get('message', 'no reason')))}"
                    names, joins = document.get("kinds", []), document.get("joined")
                    if not isinstance(names, list):
                        return f"{self.url} sent an invalid answer: no list of the classes that it hosts"
            except (TimeLimitError, Unreachable, InvalidAnswer) as error:
                return f"{self.url}: {error}"
            finally:
                connection.close()
            self._joins = joins is True
            self._kinds = frozenset(kind for kind in names if isinstance(kind, str))
        return self._kinds

    def takes_joined(self) -> bool:
        """Return whether the node accepts requests with several calls. The node is asked once."""
        return not isinstance(self.kinds(), str) and self._joins

    def takes_binary(self) -> bool:
        """Return whether the node accepts bodies of `wire`. The node is asked once."""
        return self._reported_health().get("binary") is True

    def instance(self) -> str:
        """Return the random name of the node's process, the same at all its addresses; empty if it reports none."""
        name = self._reported_health().get("instance")
        return name if isinstance(name, str) else ""

    def _reported_health(self) -> dict[str, Any]:
        if self._health is None:
            connection = self.connection()
            try:
                answer = connection.request("GET", _HEALTH, timeout_s=_PATIENCE_S, idempotent=True)
                self._health = document_of(answer) if answer.status == 200 else {}
            except (TimeLimitError, Unreachable, InvalidAnswer):
                return {}  # a node that knows the documented routes only may lack this route; ask again next time
            finally:
                connection.close()
        return self._health

    def doubt(self) -> None:
        """Discard what the node reported about itself after the loss of an actor there; the next actor asks again."""
        self._kinds = self._health = None

    def seen_s(self, now_s: float) -> float:
        """Return when the node was last known to be alive; between two health checks, that is now."""
        return now_s if now_s - self._seen_s < 2 * self._every_s else self._seen_s

    def join(self, channel: RemoteChannel) -> None:
        """Count one more actor."""
        with self._lock:
            self._channels.append(channel)
            self._hosts = self._hosts or channel.key is not None
            self._seen_s = time.monotonic()
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name=f"chimera-heartbeat-{self.url}", daemon=True)
                self._thread.start()

    def leave(self, channel: RemoteChannel) -> None:
        """Count an actor's death, and let the node drop it."""
        with self._lock:
            if channel in self._channels:
                self._channels.remove(channel)
        if channel.key is not None:
            self._commands.put(channel.key)

    def end(self) -> None:
        """Drop all actors of this engine at the node, and end the thread; see `join_thread`."""
        self._commands.put(None)
        self._health_connection.break_off("the engine was closed")

    def join_thread(self, timeout_s: float) -> None:
        """Wait for the end of the thread."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        else:
            self._health_connection.close()

    def _watch(self) -> None:
        while True:
            try:
                key = self._commands.get(timeout=self._every_s)
            except queue.Empty:
                if self._channels:
                    try:
                        self._look()
                    except Exception as error:  # without this thread, no death would be detected
                        for channel in list(self._channels):
                            self._mark_dead(channel, plain_text(f"{type(error).__name__}: {error}"))
                continue
            if key is None:
                break
            self._ask("DELETE", f"{ACTORS}/{key}")
        self._health_connection.close()
        if self._hosts:
            last = self._health_connection = self.connection()
            with contextlib.suppress(TimeLimitError, Unreachable, InvalidAnswer):
                last.request("DELETE", f"{ACTORS}?engine={self._key}", timeout_s=1.0, idempotent=True)
            last.close()

    def _look(self) -> None:
        hosted = any(channel.key is not None for channel in self._channels)
        asked_s = time.monotonic()
        answer = self._ask("GET", f"{ACTORS}?engine={self._key}" if hosted else _HEALTH)
        if answer is None:
            return
        self._seen_s = time.monotonic()
        if not hosted or answer.status != 200:
            return
        with contextlib.suppress(InvalidAnswer):
            actors = document_of(answer).get("actors")
            if isinstance(actors, dict):
                self._compare(actors, asked_s)

    def _compare(self, actors: dict[str, Any], asked_s: float) -> None:
        """Record the heartbeats that the node reports, and find missing actors."""
        for channel in list(self._channels):
            key = channel.key
            silent_s: Any = actors.get(key) if key else None
            if _is_duration(silent_s):
                channel.heartbeat_s = max(channel.heartbeat_s, time.monotonic() - silent_s)
            elif key and key in actors:
                self._mark_dead(
                    channel, f"the node sent an invalid answer: it says that the actor is silent for {silent_s!r:.60} s"
                )
            elif key and channel.made_s < asked_s:
                self._mark_dead(channel, "the node does not know it any more")

    def _ask(self, verb: str, path: str) -> Answer | None:
        """Return an answer, or None. If the node is dead, its actors are lost."""
        try:
            return self._health_connection.request(
                verb, path, timeout_s=max(_PATIENCE_S, self._every_s), idempotent=True
            )
        except Unreachable as error:
            if not error.here:
                for channel in list(self._channels):
                    if not channel.tries_again:
                        self._mark_dead(channel, str(error))
        except (TimeLimitError, InvalidAnswer):
            pass  # the node is alive, with any answer
        return None

    def _mark_dead(self, channel: RemoteChannel, reason: str) -> None:
        channel.mark_dead(f"at {self.url} was lost: {reason}")
        channel.interrupt(reason)


def _is_duration(silent_s: Any) -> bool:
    return type(silent_s) in (int, float) and 0 <= silent_s < 1 << 53 and math.isfinite(silent_s)

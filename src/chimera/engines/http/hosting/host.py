"""The node's side: hosts actors of allowed classes for drivers on other machines. Independent of the web framework."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from chimera.core.errors import ActorLost, ConfigurationError, DataError, UnavailableError
from chimera.engines.handle import CONSTRUCT
from chimera.engines.http import wire
from chimera.engines.http.hosting.hosted_actor import Done, HostedActor, Reply
from chimera.engines.http.joined import calls_of, methods_in
from chimera.engines.http.wire_reader import MAX_VALUES
from chimera.engines.threads import limit_threads

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
_METHOD = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,199}")
_MAX_THREADS = 1024
_MAX_WAITING = 64
"""Maximum number of waiting requests of one actor, each with up to 16 calls; a driver sends the next one after the answer."""
_MAX_WAITING_BYTES = 1 << 30
"""Maximum size of all waiting calls together, in bytes."""


class ReadBody(NamedTuple):
    """The body of a request after `read_body`, so that a program that decides about a request reads it once.

    Attributes
    ----------
    request : the content.
    size : size of the body, in bytes.
    """

    request: dict[str, Any]
    size: int


Body: TypeAlias = bytes | bytearray | ReadBody


class Host:
    """The actors of a node.

    Parameters
    ----------
    kinds : the classes of which drivers may create actors, by ``module.qualname`` of the class in the driver. No other class
        can be created, and only public methods of these classes can be called.
    forget_after_s : seconds after which an actor is dropped if its driver neither called it nor asked for its state.
    max_actors : maximum number of actors.
    """

    def __init__(
        self, kinds: Mapping[str, Callable[..., Any]], *, forget_after_s: float = 60.0, max_actors: int = 1000
    ) -> None:
        self.kinds = dict(kinds)
        self._forget_after_s, self._max_actors = forget_after_s, max_actors
        self._lock = threading.Lock()
        self._actors: dict[str, HostedActor] = {}
        self._last_received_s: dict[str, float] = {}  # time of the last request, by the key of the driver's engine
        self._cleaner: threading.Thread | None = None
        self._closed = threading.Event()
        self._give_back_threads: tuple[int, Callable[[], None]] | None = None
        self._waiting_bytes = 0

    def create(self, actor: str, body: Body, done: Done) -> None:
        """Create an actor. ``kind`` in the body names its class; the rest is a call of the constructor.

        Raises
        ------
        ConfigurationError : the class is not allowed, the name is used or invalid, or there are too many actors.
        DataError : the body cannot be read.
        """
        request, size = read_body(body)
        kind = request.get("kind")
        if not isinstance(kind, str) or kind not in self.kinds:
            raise ConfigurationError(
                f"this node hosts no {kind!r}; it hosts: {', '.join(sorted(self.kinds)) or 'nothing'}"
            )
        if not _NAME.fullmatch(actor):
            raise ConfigurationError(f"{actor!r} is no name for an actor")
        threads = _threads(request)
        with self._lock:
            if actor in self._actors or len(self._actors) >= self._max_actors or self._closed.is_set():
                reason = "the name is taken" if actor in self._actors else f"the node has {len(self._actors)} already"
                raise ConfigurationError(f"no actor {actor!r} can be made here: {reason}")
            self._limit_threads(threads)
            hosted = self._actors[actor] = HostedActor(actor, self.kinds[kind])
            self._last_received_s[_engine(actor)] = time.monotonic()
            if self._cleaner is None:
                self._cleaner = threading.Thread(target=self._clean, name="chimera-host", daemon=True)
                self._cleaner.start()
        try:
            hosted.ask(CONSTRUCT, request, self._counted(hosted, size, done))
        except UnavailableError:
            self.kill(actor)
            raise

    def call(self, actor: str, method: str, body: Body, done: Done) -> None:
        """Call a method, or several, after earlier calls; see `HostedActor.ask`.

        Raises
        ------
        ActorLost : the actor does not exist.
        ConfigurationError : a method cannot be called by drivers.
        DataError : the body cannot be read.
        """
        methods = methods_in(method)
        for each in methods:
            if not _METHOD.fullmatch(each):
                raise ConfigurationError(f"{each!r} is no method that can be called from outside")
        request, size = read_body(body)
        calls_of(methods, request)  # raises before the request waits
        with self._lock:
            hosted = self._actors.get(actor)
            if hosted is not None:  # no entry for names that a client invents
                self._last_received_s[_engine(actor)] = time.monotonic()
        if hosted is None:
            raise ActorLost(f"there is no actor {actor!r} here")
        hosted.ask(method, request, self._counted(hosted, size, done))

    def _counted(self, hosted: HostedActor, size: int, done: Done) -> Done:
        """Count a call as waiting until it is answered.

        Raises
        ------
        UnavailableError : too many calls wait.
        """
        with self._lock:
            if hosted.waiting >= _MAX_WAITING or self._waiting_bytes + size > _MAX_WAITING_BYTES:
                raise UnavailableError("too many calls wait here: ask again once some are answered")
            hosted.waiting += 1
            self._waiting_bytes += size

        def answered(reply: Reply) -> None:
            with self._lock:
                hosted.waiting -= 1
                self._waiting_bytes -= size
            done(reply)

        return answered

    def has(self, actor: str) -> bool:
        """Return whether there is such an actor."""
        return actor in self._actors

    def actors_of_all(self) -> int:
        """Return the number of actors."""
        return len(self._actors)

    def actors(self, engine: str) -> dict[str, float]:
        """Return the actors of a driver, each with the seconds since its last heartbeat; note that the driver is alive."""
        now_s = time.monotonic()
        with self._lock:
            found = {name: hosted for name, hosted in self._actors.items() if _engine(name) == engine}
            if found:
                self._last_received_s[engine] = now_s
        return {name: hosted.silent_s(now_s) for name, hosted in found.items()}

    def kill(self, actor: str) -> bool:
        """Drop an actor; return whether it existed. A running call is not awaited, and has no result."""
        with self._lock:
            hosted = self._actors.pop(actor, None)
        if hosted is not None:
            hosted.end()
        return hosted is not None

    def kill_all(self, engine: str | None = None) -> int:
        """Drop the actors of one driver, or all actors; return their number."""
        with self._lock:
            names = [name for name in self._actors if engine is None or _engine(name) == engine]
            if engine is not None:
                self._last_received_s.pop(engine, None)
        return sum(self.kill(name) for name in names)

    def close(self) -> None:
        """Drop everything."""
        self._closed.set()
        self.kill_all()
        with self._lock:
            if self._give_back_threads is not None:
                self._give_back_threads[1]()
                self._give_back_threads = None
        if self._cleaner is not None:
            self._cleaner.join()

    def _clean(self) -> None:
        while not self._closed.wait(min(self._forget_after_s / 4, 5.0)):
            before_s = time.monotonic() - self._forget_after_s
            with self._lock:
                gone = [
                    engine for engine, last_received_s in self._last_received_s.items() if last_received_s < before_s
                ]
            for engine in gone:
                self.kill_all(engine)

    def _limit_threads(self, threads: int) -> None:
        """Set the threads for arithmetic to the largest request of all actors, which share one process."""
        if self._give_back_threads is None or threads > self._give_back_threads[0]:
            if self._give_back_threads is not None:
                self._give_back_threads[1]()
            self._give_back_threads = threads, limit_threads(threads)


def _threads(request: dict[str, Any]) -> int:
    """Return the number of threads for an actor: its request, limited by the cores of this machine."""
    threads, cores = request.get("threads", 1), os.cpu_count() or 1
    if type(threads) is not int or not 1 <= threads <= _MAX_THREADS:
        raise ConfigurationError(f"threads must be a whole number from 1 to {_MAX_THREADS}, not {threads!r:.40}")
    return min(threads, cores)


def read_body(body: Body) -> ReadBody:
    """Return the content of a body, which is read unless it was before.

    Raises
    ------
    DataError : the body cannot be read.
    """
    if isinstance(body, ReadBody):
        return body
    request = wire.unpack(body, max_values=MAX_VALUES)
    if not isinstance(request, dict):
        raise DataError("the body is no dictionary")
    return ReadBody(request, len(body))


def _engine(actor: str) -> str:
    return actor.partition(".")[0]

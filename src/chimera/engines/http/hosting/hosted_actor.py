"""An actor on a node: a thread that answers the calls of drivers, one after another."""

from __future__ import annotations

import inspect
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

from chimera.core import call as actor_context
from chimera.core.call import nbytes
from chimera.core.errors import ActorLost, ConfigurationError, DataError
from chimera.core.registry import registered_names_only
from chimera.engines.handle import CONSTRUCT, check_returns, results
from chimera.engines.http import wire
from chimera.engines.http.connection import JSON
from chimera.engines.http.failure import described
from chimera.engines.http.joined import calls_of, methods_in, pack_replies
from chimera.engines.thread_context import ThreadContext, close_for_threads, enter_thread, open_for_threads

_MAX_RETURNS = 100_000


class Reply(NamedTuple):
    """A reply to a driver.

    Attributes
    ----------
    samples : number of rows of data that a call has read, if the call returned a value; None for all other replies.
    parts : the reply to each call, if the request has several. The body is empty then, see `whole`.
    """

    status: int
    content_type: str
    body: bytes
    samples: int | None = None
    parts: tuple[Reply, ...] = ()

    @classmethod
    def joined(cls, replies: Sequence[Reply]) -> Reply:
        """Return the reply to a request with these replies to its calls."""
        return replies[0] if len(replies) == 1 else cls(200, wire.CONTENT_TYPE, b"", parts=tuple(replies))

    def whole(self) -> Reply:
        """Return the reply with its body."""
        if not self.parts:
            return self
        return Reply(200, wire.CONTENT_TYPE, pack_replies([(p.status, p.content_type, p.body) for p in self.parts]))


Done: TypeAlias = Callable[[Reply], None]
"""Receives the reply, in the actor's thread."""


class HostedActor:
    """An actor and its thread.

    Parameters
    ----------
    name : name of the actor.
    kind : its class, or a function that returns it.

    Attributes
    ----------
    waiting : number of requests without an answer.
    """

    def __init__(self, name: str, kind: Callable[..., Any]) -> None:
        self._name, self._kind = name, kind
        self._target: Any = None
        self._constructor_failure: dict[str, Any] | None = None
        self._actor_context = ThreadContext()
        self._queue: queue.SimpleQueue[tuple[str, dict[str, Any], Done] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._dead = False
        self.waiting = 0
        threading.Thread(target=self._live, name=f"chimera-{name}", daemon=True).start()

    def ask(self, method: str, request: dict[str, Any], done: Done) -> None:
        """Answer a request after the earlier ones; a dead actor answers at once, with an error.

        Parameters
        ----------
        method : the method, or several; ``request`` then has a part for each, see `chimera.engines.http.joined`.
        """
        with self._lock:  # after the end of the queue, nothing would answer
            if not self._dead:
                self._queue.put((method, request, done))
                return
        done(_gone(self._name))

    def silent_s(self, now_s: float) -> float:
        """Return the seconds since the last heartbeat of a running call; 0 if no call runs."""
        return now_s - (self._actor_context.heartbeat_s or now_s)

    def end(self) -> None:
        """End the actor. Calls that wait are answered with an error."""
        with self._lock:
            self._dead = True
            self._queue.put(None)

    def _live(self) -> None:
        open_for_threads()
        enter_thread(self._actor_context)
        try:
            with registered_names_only("a driver"):
                self._answer_calls()
        finally:
            self._target = None
            close_for_threads()

    def _answer_calls(self) -> None:
        while (asked := self._queue.get()) is not None:
            method, request, done = asked
            done(self._answer(method, request))

    def _answer(self, method: str, request: dict[str, Any]) -> Reply:
        methods = methods_in(method)
        # The answers of a request are in memory together, so only short calls may follow the first one.
        following = methods[1:]
        if (
            following
            and self._target is not None
            and not set(following) <= set(getattr(type(self._target), "brief", ()))
        ):
            return error_reply(422, ConfigurationError(f"{method[:100]!r}: only short calls may follow in a request"))
        return Reply.joined([self._run(*each) for each in zip(methods, calls_of(methods, request), strict=True)])

    def _run(self, method: str, request: dict[str, Any]) -> Reply:
        if self._dead:
            return _gone(self._name)
        began_s = self._actor_context.heartbeat_s = time.monotonic()
        cost: dict[str, Any] = {"bytes_in": 0, "bytes_out": []}
        answer: dict[str, Any] = {"cost": cost}
        status = 200
        try:
            if self._constructor_failure is not None:
                answer["failure"] = self._constructor_failure
            else:
                args, kwargs, returns = call_arguments(request)
                cost["bytes_in"] = sum(map(nbytes, (*args, *kwargs.values())))
                values = self._values(method, args, kwargs, returns)
                answer["values"] = [wire.Packed(wire.pack(value)) for value in values]
                cost["bytes_out"] = [nbytes(value) for value in values]
        except (Exception, SystemExit) as error:  # any exception of an actor is the result of the call
            answer["failure"] = described(error, method)
            if method == CONSTRUCT:
                self._constructor_failure = answer["failure"]
        if "failure" in answer:
            status = 500
        self._actor_context.heartbeat_s = None
        cost["samples"] = samples = actor_context.take_work().samples
        cost["lasted_s"] = time.monotonic() - began_s
        return Reply(status, wire.CONTENT_TYPE, wire.pack(answer), samples if status == 200 else None)

    def _values(self, method: str, args: list[Any], kwargs: dict[str, Any], returns: int | None) -> list[Any]:
        if method == CONSTRUCT:
            self._target = self._kind(*args, **kwargs)
            return [None]
        call = _method_of(self._target, method)
        return results(call(*args, **kwargs), self._name, method, returns)


def _method_of(target: Any, method: str) -> Callable[..., Any]:
    """Return a method of the actor's class, or what the class's ``__getattr__`` returns.

    A peer must not call functions or objects in the attributes of an actor.

    Raises
    ------
    AttributeError : the class defines no such method.
    """
    kind = type(target)
    if inspect.isfunction(getattr(kind, method, None)):
        return getattr(target, method)  # type: ignore[no-any-return]
    if (dynamic := getattr(kind, "__getattr__", None)) is not None:
        return dynamic(target, method)  # type: ignore[no-any-return]
    raise AttributeError(f"{kind.__name__} has no method {method!r}")


def error_reply(status: int, error: BaseException) -> Reply:
    """Return an error in the documented form."""
    details = {"errorCode": status, "errorMessage": type(error).__name__}
    return Reply(status, JSON, msgspec.json.encode({"message": str(error), "details": details}))


def _gone(name: str) -> Reply:
    return error_reply(404, ActorLost(f"{name} was dropped"))


def call_arguments(request: dict[str, Any]) -> tuple[list[Any], dict[str, Any], int | None]:
    """Return positional and named arguments, and the number of results."""
    try:
        args, kwargs = request.get("call", [[], {}])
        args, kwargs, returns = list(args), dict(kwargs), request.get("returns")
        for place, value in request.get("places", {}).items():
            if not 0 <= int(place) < len(args):
                raise IndexError(f"there is no argument {place}")
            args[int(place)] = value
        kwargs |= request.get("names", {})
    except (TypeError, ValueError, IndexError, AttributeError) as error:
        raise DataError(f"the body is no call: {error}") from error
    if returns is not None and not (type(returns) is int and returns <= _MAX_RETURNS):
        raise DataError(f"returns is a whole number of at most {_MAX_RETURNS}, not {returns!r:.40}")
    check_returns(returns, "the actor", "it")
    return args, kwargs, returns

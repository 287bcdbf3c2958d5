"""The actor's side of calls on other actors. Actors can use Ray's handles, so this works as in the driver."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from chimera.core import call
from chimera.core.errors import ConfigurationError
from chimera.engines.failure import Failure
from chimera.engines.handle import ActorHeldRef, check_returns, receive_handles
from chimera.engines.ray.failure import translated
from chimera.engines.ray.refs import RayActor

_HEARTBEAT_S = 0.5
"""Interval of heartbeats of a waiting actor, in seconds."""


class Peer:
    """Another actor, as a handle inside an actor refers to it.

    Parameters
    ----------
    rank, key, name, handle, made : see its record in the driver, `Channel`.
    """

    def __init__(self, rank: int, key: str, name: str, handle: Any, made: Any) -> None:
        self.rank, self.key, self.name, self.handle, self.made = rank, key, name, handle, made
        self.is_new = True
        self._remotes: dict[int, Callable[..., Any]] = {}

    def remote(self, results: int) -> Callable[..., Any]:
        """Return Ray's function that issues a call with this number of results."""
        if results not in self._remotes:
            method = self.handle.call_of_actor.options(num_returns=results, enable_task_events=False)
            self._remotes[results] = method.remote
        return self._remotes[results]


class HeldRef(ActorHeldRef):
    """A ref that an actor holds."""

    __slots__ = ("method", "object", "peer")

    def __init__(self, peer: Peer, method: str, object_ref: Any) -> None:
        self.peer, self.method, self.object = peer, method, object_ref


class NestedCalls:
    """The engine inside an actor, for the handles that the actor received.

    Parameters
    ----------
    me : this actor's key, which begins with the key of its engine.
    shift_s : seconds by which the driver's clock is ahead of this machine's.

    Attributes
    ----------
    received_bytes : array bytes that `get` brought from other actors.
    """

    def __init__(self, me: str, shift_s: float) -> None:
        self.key = me.rpartition("-")[0]
        self.received_bytes = 0
        self._me, self._shift_s = me, shift_s
        self._handles: dict[int, RayActor] = {}
        self._names: dict[str, str] = {}  # by Ray's id
        receive_handles(self)

    def handle(self, rank: int, key: str, name: str, handle: Any, made: Any) -> RayActor:
        """Return this process's handle of an actor."""
        if rank not in self._handles:
            self._handles[rank] = RayActor(self, Peer(rank, key, name, handle, made))
            self._names[handle._actor_id.hex()] = name
        return self._handles[rank]

    def place(self, peer: Peer) -> tuple[int, str, str, Any, Any]:
        """Return the values that are pickled with a handle."""
        return peer.rank, peer.key, peer.name, peer.handle, peer.made

    def call(self, peer: Peer, method: str, /, *args: Any, returns: int | None = None, **kwargs: Any) -> Any:
        """Issue a call. Methods of handles call this."""
        check_returns(returns, peer.name, method)
        held = [a for a in (*args, *kwargs.values()) if type(a) is HeldRef]
        own = [i for i, a in enumerate(args) if type(a) is HeldRef and a.peer.key == peer.key]
        given = [a.object if type(a) is HeldRef else a for a in args]
        named = {k: a.object if type(a) is HeldRef else a for k, a in kwargs.items()}
        # Not for calls with refs: they may arrive later for other reasons than transfer.
        asked_s = None if held else time.monotonic() + self._shift_s
        # The first call waits until the driver's call has created the object; Ray runs later calls after it.
        made, peer.is_new = peer.made if peer.is_new else None, False
        try:
            objects = peer.remote(returns or 1)(asked_s, made, (method, returns, own or None, None), *given, **named)
        except TypeError as error:
            raise ConfigurationError(f"an argument of {method!r} cannot travel to {peer.name}: {error}") from error
        refs = [HeldRef(peer, method, o) for o in (objects if isinstance(objects, list) else [objects])]
        return refs[0] if returns is None else refs

    def get(self, refs: Any, timeout_s: float | None = None) -> Any:
        """Return the value of a ref, or the values of a sequence; arrays are read-only views of the object store."""
        several = isinstance(refs, Sequence)
        requested: list[HeldRef] = list(refs) if several else [refs]
        values = self._values(requested, None if timeout_s is None else time.monotonic() + timeout_s)
        for value, ref in zip(values, requested, strict=True):
            if type(value) is Failure:
                raise value.exception()
            self.received_bytes += call.nbytes(value) if ref.peer.key != self._me else 0
        return values if several else values[0]

    def _values(self, refs: list[HeldRef], deadline: float | None) -> list[Any]:
        import ray
        from ray.exceptions import GetTimeoutError, RayError

        for ref in refs:
            if ref.peer.key == self._me and not ray.wait([ref.object], timeout=0)[0]:
                raise ref.own_call_error()
        objects = [ref.object for ref in refs]
        while True:
            left = _HEARTBEAT_S if deadline is None else min(max(deadline - time.monotonic(), 0.0), _HEARTBEAT_S)
            try:
                values: list[Any] = ray.get(objects, timeout=left)
                return values
            except GetTimeoutError as error:
                call.current().alive()
                if deadline is not None and time.monotonic() >= deadline:  # Ray may return a little early
                    late = [ref for ref in refs if not ray.wait([ref.object], timeout=0)[0]]
                    if late:  # otherwise it has arrived meanwhile
                        raise late[0].time_limit_error() from error
            except RayError as error:
                done, _ = ray.wait(list(dict.fromkeys(objects)), num_returns=1, timeout=0)
                method = next((ref.method for ref in refs if ref.object in done), refs[0].method)
                raise translated(error, method, self._names.get) from None

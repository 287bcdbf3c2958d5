"""Handles on actors in other processes, for engines whose `call` takes the actor's channel."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from chimera.core.errors import ConfigurationError, RunError, TimeLimitError

_engines: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()

CONSTRUCT = "__init__"
"""Method name of the call that creates an actor."""


class ActorHandle:
    """A handle on an actor. Every public attribute except ``name`` is a method of the actor.

    A handle may be sent to actors of the same engine inside any argument. There it refers to the same actor.

    Parameters
    ----------
    engine : the engine, or its representative inside an actor. It has ``call(channel, method, *args, **kwargs)``, ``key``
        (identifies the engine), ``place(channel)`` (the arguments that locate the actor in another process) and
        ``handle(*place)``.
    channel : the engine's record of the actor; has a ``name``.
    """

    def __init__(self, engine: Any, channel: Any) -> None:
        self._engine, self._channel = engine, channel

    @property
    def name(self) -> str:
        """The name under which the actor was spawned."""
        return str(self._channel.name)

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if method.startswith("_"):
            raise AttributeError(method)
        bound = functools.partial(self._engine.call, self._channel, method)
        self.__dict__[method] = bound
        return bound

    def __reduce__(self) -> tuple[Any, ...]:
        return handle_of, (self._engine.key, self.name, self._engine.place(self._channel))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


def receive_handles(engine: Any) -> None:
    """Register ``engine``: it creates the handles that arrive in this process with the key ``engine.key``."""
    _engines[engine.key] = engine


def handle_of(key: str, name: str, place: tuple[Any, ...]) -> Any:
    """Return a handle on the pickled handle's actor; works in any process."""
    engine = _engines.get(key)
    return ActorHandle(_ForeignEngine(key, place), _Name(name)) if engine is None else engine.handle(*place)


def foreign_handle(name: str) -> ConfigurationError:
    """Return the error of a handle of another engine."""
    return ConfigurationError(f"the handle of {name} works in the driver and in the actors of its own engine only")


class _Name(NamedTuple):
    name: str


class _ForeignEngine:
    """The engine of a handle in a process that is neither the driver nor an actor of that engine. Its calls raise."""

    def __init__(self, key: str, place: tuple[Any, ...]) -> None:
        self.key, self._place = key, place

    def call(self, channel: _Name, *_: Any, **__: Any) -> Any:
        raise foreign_handle(channel.name)

    def place(self, _: _Name) -> tuple[Any, ...]:
        return self._place


def check_returns(returns: int | None, actor: str, method: str) -> None:
    """Raise ConfigurationError if ``returns`` is less than 1."""
    if returns is not None and returns < 1:
        raise ConfigurationError(f"{method!r} of {actor}: returns must be at least 1, not {returns}")


def results(value: Any, actor: str, method: str, returns: int | None) -> list[Any]:
    """Split a method's result into the values of its refs; raise ConfigurationError unless there are ``returns`` of them."""
    if returns is None:
        return [value]
    values = value if type(value) is list else list(value) if isinstance(value, Iterable) else None
    if values is None or len(values) != returns:
        got = f"a {type(value).__name__}" if values is None else f"{len(values)} values"
        raise ConfigurationError(
            f"{method!r} of {actor} was called with returns={returns} and returned {got}: "
            f"let it return a tuple or list of {returns}"
        )
    return values


class ActorHeldRef:
    """Base class of refs that an actor holds: an argument of calls of that actor, which cannot be pickled otherwise."""

    __slots__ = ()
    peer: Any
    """The called actor, which has a ``name``."""
    method: str

    def __reduce__(self) -> tuple[Any, ...]:
        raise ConfigurationError(
            "a ref that an actor holds is an argument of its own in calls of that actor, and no more"
        )

    def __repr__(self) -> str:
        return f"<Ref to {self.method!r} of {self.peer.name}>"

    def own_call_error(self) -> RunError:
        """Return the error of an actor that waits for its own call."""
        return RunError(f"{self.peer.name} would wait forever: its call {self.method!r} on itself comes after this one")

    def time_limit_error(self) -> TimeLimitError:
        """Return the error of a wait that exceeded its time limit."""
        return TimeLimitError(f"{self.method!r} of {self.peer.name} did not end within its time limit")

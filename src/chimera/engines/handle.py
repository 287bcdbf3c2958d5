"""The handle on an actor in another process, for engines whose `call` issues a call in an actor's lane."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from chimera.core.errors import ConfigurationError


class ActorHandle:
    """Any public attribute but ``name`` is one of the actor's methods.

    Parameters
    ----------
    engine : has ``call(lane, method, *args, **kwargs)``.
    lane : what the engine's driver side keeps about the actor; has a ``name``.
    """

    def __init__(self, engine: Any, lane: Any) -> None:
        self._engine, self._lane = engine, lane

    @property
    def name(self) -> str:
        """The name it was spawned under."""
        return str(self._lane.name)

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if method.startswith("_"):
            raise AttributeError(method)
        bound = functools.partial(self._engine.call, self._lane, method)
        self.__dict__[method] = bound
        return bound

    def __reduce__(self) -> tuple[Any, ...]:
        raise ConfigurationError("the handle of an actor stays in the driver; give other actors its refs")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

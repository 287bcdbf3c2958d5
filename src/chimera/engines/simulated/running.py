"""Execution of an actor's code by a call of the simulated engine."""

from __future__ import annotations

import traceback
from typing import Any, TypeAlias

from chimera.core.errors import ActorError
from chimera.engines.handle import results
from chimera.engines.simulated.call import Call, Ref
from chimera.engines.stored import Packed, Stored

Outcome: TypeAlias = tuple[tuple[Stored, ...], BaseException | None]
"""The results of a call, or no results and the exception that it raised."""


def opened(kept: Any) -> Any:
    """Return an argument of a call, for the actor."""
    if type(kept) is Ref:
        kept = kept.stored
    return kept.open() if type(kept) is Stored else kept


def construct(call: Call) -> Outcome:
    """Create the actor, and replace its type by it."""
    node = call.node
    try:
        node.target = node.target(*map(opened, call.args), **{key: opened(kept) for key, kept in call.kwargs.items()})
        return (), None
    except Exception as error:
        node.failure = travelled(error, call)
        return (), node.failure


def run(call: Call) -> Outcome:
    """Run the actor's code, and freeze what it returns or raises."""
    try:
        kwargs = {key: opened(kept) for key, kept in call.kwargs.items()} if call.opens else call.kwargs
        args = map(opened, call.args)
        value = getattr(call.node.target, call.method)(*args, **kwargs)
        if call.returns is None:
            return (Stored(value),), None
        return tuple(map(Stored, results(value, call.node.name, call.method, call.returns))), None
    except Exception as error:
        return (), travelled(error, call)


def travelled(error: Exception, call: Call) -> BaseException:
    """Return ``error`` as it arrives at another actor, with the traceback of its origin as its cause."""
    text = "".join(traceback.format_exception(error))
    failure = ActorError(f"{type(error).__name__} in {call.node.name}, call {call.method!r}:\n{text}")
    try:
        copy = Packed(error).open()
    except Exception:  # its class may define its own pickling; the traceback arrives in any case
        return failure
    if not isinstance(copy, Exception):
        return failure
    copy.__cause__ = failure
    return copy

"""The kinds of messages between ranks. Each message is a plain tuple that begins with its kind; bytes of arrays may follow."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from chimera.engines.mpi.values import Kept

(
    PRELOAD,  # modules: import them now
    SPAWN,  # actor, its name, threads, import path of the driver: create a place for an actor
    CALL,  # see `Call`
    DONE,  # number of the first result, failed, values or None, row or None: a call has ended
    FETCH,  # number: send the value of a result when it is ready
    VALUE,  # number, failed, when it was ready, value: a copy
    DROP,  # numbers: no reader needs these results any more
    KILL,  # actor: end it
    DEAD,  # actor, name: the actor is dead; sent to all ranks
    ROWS,  # actors: send the rows of calls by other actors; also the kind of the answer, with rows
    SIGNS,  # actors: send their heartbeats; also the kind of the answer, with times
    CLOSE,  # actors: end them and forget their results; also the kind of the answer
    END,  # the job ends
) = range(13)

Argument: TypeAlias = tuple[int, int, int]
"""A ref in a message: the rank that keeps the value, the value's number, and the actor whose result it is."""

Row: TypeAlias = tuple[str, float, float, float, float, int, int, int, str]
"""A trace row in a message: call, start, end, seconds of transfer, seconds of waiting, bytes in and out, samples, error.

Times are those of the driver's clock."""


class Call(NamedTuple):
    """A call in flight to an actor, or waiting at the actor.

    Attributes
    ----------
    caller : the rank that has issued it.
    outs : numbers of the results.
    refs, named : arguments that are refs, and None in the places of other arguments.
    plain : the other arguments, as a pair of a list and a dictionary; None if there are none.
    issued_s : when it was issued, on the driver's clock.
    traced : whether its row is sent with the notice of its end; otherwise the driver asks for the row.
    """

    caller: int
    actor: int
    method: str
    returns: int | None
    outs: tuple[int, ...]
    refs: tuple[Argument | None, ...]
    named: dict[str, Argument]
    plain: Kept | None
    issued_s: float
    traced: bool

    def arguments(self) -> list[Argument]:
        """Return the arguments that are refs."""
        return [ref for ref in (*self.refs, *self.named.values()) if ref is not None]

"""The trace: one row for every call that an actor ran."""

from __future__ import annotations

import msgspec


class TraceRow(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One call on one actor. Times are the engine's seconds (virtual on the simulated engine).

    Attributes
    ----------
    actor : the actor's name, such as ``worker 3``; a lane of the timeline.
    rank : in which order the actor was spawned on its engine, from 0.
    call : the method's name.
    start_s, end_s : when it began (all arguments there) and when its result stood.
    transfer_s : how long before ``start_s`` its arguments were on the way while the actor was idle, plus what moving data
        inside the call cost.
    wait_s : how much of the call was spent waiting for other members of a group, or for what it called on other actors.
    bytes_in, bytes_out : array bytes of the arguments that came from elsewhere and of what it got from other actors, and of
        the results; a collective counts in both.
    samples : how many samples it processed.
    error : the name of the exception it ended with, or nothing.
    """

    actor: str
    rank: int
    call: str
    start_s: float
    end_s: float
    bytes_in: int = 0
    bytes_out: int = 0
    transfer_s: float = 0.0
    wait_s: float = 0.0
    samples: int = 0
    error: str = ""

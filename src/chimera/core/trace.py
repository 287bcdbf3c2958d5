"""The trace: one row for every call that an actor ran, and for each recorded part of it."""

from __future__ import annotations

import msgspec


class TraceRow(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One call on one actor, or a part of it. Times are the engine's seconds (virtual on the simulated engine).

    Attributes
    ----------
    actor : the actor's name, such as ``worker 3``; a lane of the timeline.
    rank : number of the actor in the order of spawning, from 0.
    call : the method's name.
    start_s, end_s : when the call began, with all arguments there, and when its result was available.
    transfer_s : time before ``start_s`` in which arguments were in flight and the actor was idle, plus the time of data
        transfers within the call.
    wait_s : time in the call spent waiting for members of a group, or for calls on other actors.
    bytes_in, bytes_out : array bytes received (arguments from elsewhere, values from other actors), and bytes of the results; a
        collective counts in both.
    samples : number of samples processed.
    error : name of the exception that ended the call; empty if none.
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

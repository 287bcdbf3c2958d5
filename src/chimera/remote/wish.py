"""What a worker's function asks for when it cannot go on by itself, as it travels to the driver."""

from __future__ import annotations

from typing import Literal

import msgspec


class Wish(msgspec.Struct, frozen=True):
    """What one worker waits for.

    Attributes
    ----------
    kind : ``send`` and ``receive`` have a peer; ``broadcast``, ``gather``, ``reduce`` and ``barrier`` are met by all workers;
        ``end`` says that the function has returned.
    peer : the rank of whom it is sent to or received from, or that of a broadcast's root.
    what : of what all workers meet for, in words; they must say the same.
    """

    kind: Literal["send", "receive", "broadcast", "gather", "reduce", "barrier", "end"]
    peer: int = -1
    what: str = ""

    def __str__(self) -> str:
        if self.kind == "end":
            return "has ended"
        return f"waits for a message from worker {self.peer}" if self.kind == "receive" else f"waits in {self.what}"

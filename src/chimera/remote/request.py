"""The request that a worker's function sends to the driver when it needs another worker."""

from __future__ import annotations

from typing import Literal

import msgspec


class Request(msgspec.Struct, frozen=True):
    """An operation that a worker requests.

    Attributes
    ----------
    kind : ``send`` and ``receive`` have a peer; ``broadcast``, ``gather``, ``reduce`` and ``barrier`` are collectives; ``end``
        means that the function has returned.
    peer : rank of the receiver, of the sender, or of a broadcast's root.
    what : description of a collective; it must be the same on all workers.
    """

    kind: Literal["send", "receive", "broadcast", "gather", "reduce", "barrier", "end"]
    peer: int = -1
    what: str = ""

    def __str__(self) -> str:
        if self.kind == "end":
            return "has ended"
        return f"waits for a message from worker {self.peer}" if self.kind == "receive" else f"waits in {self.what}"

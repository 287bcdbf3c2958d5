"""Values between ranks: a short message that describes a value, and one message for each large array, without a copy."""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chimera.engines.mpi.library import MPI

_INLINE_BYTES = 8192
_ALIGN = 64
_HEAD = struct.Struct("<IIq")
_KEPT_BUFFERS = 8  # largest number of buffers kept for the next messages of a sender


class Message(NamedTuple):
    """A message of one rank to another: plain bytes, and the bytes of arrays, which are read-only for the receiver.

    Attributes
    ----------
    sent_ns : when it was sent, by the clock of the sender's machine.
    """

    text: bytes
    buffers: list[memoryview]
    sent_ns: int = 0


class Channel(NamedTuple):
    """Two communicators of the same ranks: one for the beginnings of messages, and one for their arrays."""

    heads: Any
    arrays: Any


def aligned(nbytes: int) -> NDArray[np.uint8]:
    """Return memory at a multiple of 64 bytes, uninitialised: sums of linear algebra depend on the position in memory."""
    block = np.empty(nbytes + _ALIGN, np.uint8)
    offset = -block.ctypes.data % _ALIGN
    return block[offset : offset + nbytes]


def send(channel: Channel, rank: int, tag: int, text: bytes, buffers: Sequence[memoryview]) -> list[Any]:
    """Begin to send a message, in a thread that holds the lock of MPI; return the requests.

    Do not change the buffers before the requests are complete.
    """
    sizes = [buffer.nbytes for buffer in buffers]
    head = [_HEAD.pack(len(sizes), len(text), time.monotonic_ns()), struct.pack(f"<{len(sizes)}q", *sizes), text]
    head += [bytes(buffer) for buffer in buffers if buffer.nbytes <= _INLINE_BYTES]
    requests = [channel.heads.Isend([b"".join(head), MPI.BYTE], rank, tag)]
    requests += [
        channel.arrays.Isend([buffer, MPI.BYTE], rank, tag) for buffer in buffers if buffer.nbytes > _INLINE_BYTES
    ]
    return requests


class Incoming:
    """The messages that arrive from one sender, in order.

    Parameters
    ----------
    channel, source, tag : communicators, rank of the sender, and the tag with which it calls `send`.
    reuse : whether the memory of arrays is used again after `release`.
    """

    def __init__(self, channel: Channel, source: int, tag: int, *, reuse: bool = False) -> None:
        self._channel, self.source, self._tag, self._reuse = channel, source, tag, reuse
        self._status = MPI.Status()
        self._matched: deque[tuple[Any, int]] = deque()
        self._head: tuple[Any, bytearray] | None = None  # its request and memory
        self._requests: list[Any] | None = None
        self._message = Message(b"", [])
        self._lent: list[NDArray[np.uint8]] = []
        self._spare: list[NDArray[np.uint8]] = []

    @property
    def busy(self) -> bool:
        """Whether a message has begun to arrive, and is not complete."""
        return self._head is not None or self._requests is not None or bool(self._matched)

    def match(self, message: Any, nbytes: int) -> None:
        """Take a head that a probe for any sender has found."""
        self._matched.append((message, nbytes))

    def poll(self, *, probe: bool = True) -> Message | None:
        """Return the next message if it is complete. The calling thread holds the lock of MPI.

        Parameters
        ----------
        probe : whether to probe for heads; otherwise `match` provides them.
        """
        if self._requests is None and self._head is None:
            if probe and not self._matched:
                message = self._channel.heads.Improbe(self.source, self._tag, self._status)
                if message is not None:
                    self._matched.append((message, self._status.Get_count(MPI.BYTE)))
            if not self._matched:
                return None
            message, nbytes = self._matched.popleft()
            block = bytearray(nbytes)
            self._head = message.Irecv([block, MPI.BYTE]), block
        if self._head is not None:
            request, block = self._head
            if not request.Test():
                return None
            self._head, self._requests = None, self._begin_arrays(block)
        if self._requests and not MPI.Request.Testall(self._requests):
            return None
        self._requests = None
        return self._message

    def release(self) -> None:
        """Allow the memory of the messages so far to be used again: their receiver has read them."""
        self._spare = (self._lent + self._spare)[:_KEPT_BUFFERS]
        self._lent = []

    def _begin_arrays(self, block: bytearray) -> list[Any]:
        if self._reuse:
            self.release()  # a sender waits for an answer before its next message, in this group or another one
        count, length, sent_ns = _HEAD.unpack_from(block)
        sizes = struct.unpack_from(f"<{count}q", block, _HEAD.size)
        at = _HEAD.size + 8 * count
        view = memoryview(block)
        text = bytes(view[at : at + length])
        at += length
        requests, buffers = [], []
        for size in sizes:
            memory = self._memory(size)
            target = memoryview(memory)  # type: ignore[arg-type]
            if size <= _INLINE_BYTES:
                target[:] = view[at : at + size]
                at += size
            else:
                requests.append(self._channel.arrays.Irecv([target, MPI.BYTE], self.source, self._tag))
            buffers.append(target.toreadonly())
        self._message = Message(text, buffers, sent_ns)
        return requests

    def _memory(self, nbytes: int) -> NDArray[np.uint8]:
        if not self._reuse:
            return aligned(nbytes)
        found = next((i for i, block in enumerate(self._spare) if block.nbytes == nbytes), None)
        memory = aligned(nbytes) if found is None else self._spare.pop(found)
        self._lent = [*self._lent[1 - _KEPT_BUFFERS :], memory]
        return memory

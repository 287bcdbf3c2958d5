"""How a value lies in a block: a pickle, and behind it the bytes of its arrays, which readers use in place."""

from __future__ import annotations

import pickle
import struct
import sys
from collections.abc import Callable
from typing import Any

import cloudpickle

from chimera.core.errors import ActorError, ConfigurationError
from chimera.engines.local.memory import Lease, Memory

_ALIGN = 64
_COUNT = struct.Struct("qq")
_PLACE = struct.Struct("qq")


class Packed:
    """A pickled value whose array bytes still lie where they were.

    Attributes
    ----------
    nbytes : the size of the block it needs.
    array_bytes : how much of that is array data.
    """

    __slots__ = ("array_bytes", "buffers", "nbytes", "stream")

    def __init__(self, value: Any) -> None:
        self.buffers: list[memoryview] = []
        self.stream = _dumps(value, self.buffers)
        self.array_bytes = sum(buffer.nbytes for buffer in self.buffers)
        at = _COUNT.size + _PLACE.size * len(self.buffers) + len(self.stream)
        for buffer in self.buffers:
            at = _aligned(at) + buffer.nbytes
        self.nbytes = at

    def write(self, block: Any) -> None:
        """Copy everything into ``block``, a writable buffer of ``nbytes`` bytes: the one copy that a value costs."""
        target = memoryview(block)
        _COUNT.pack_into(target, 0, len(self.buffers), len(self.stream))
        head = _COUNT.size + _PLACE.size * len(self.buffers)
        at = head + len(self.stream)
        target[head:at] = self.stream
        for i, buffer in enumerate(self.buffers):
            at = _aligned(at)
            _PLACE.pack_into(target, _COUNT.size + i * _PLACE.size, at, buffer.nbytes)
            target[at : at + buffer.nbytes] = buffer
            at += buffer.nbytes


def unpack(memory: Memory, actor: int, offset: int, nbytes: int, release: Callable[[], None]) -> Any:
    """Return the value in a block; its arrays are read-only views, and ``release`` is called when the last of them goes."""
    lease = memory.block(actor, offset, nbytes).view(Lease)
    lease.release = release
    view = memoryview(lease).toreadonly()  # type: ignore[arg-type]
    count, length = _COUNT.unpack_from(view, 0)
    head = _COUNT.size + _PLACE.size * count
    places = (_PLACE.unpack_from(view, _COUNT.size + i * _PLACE.size) for i in range(count))
    return pickle.loads(view[head : head + length], buffers=[view[at : at + size] for at, size in places])


def _dumps(value: Any, buffers: list[memoryview]) -> bytes:
    """Pickle, by value where a class cannot be imported elsewhere; array bytes go to ``buffers``."""
    out: list[pickle.PickleBuffer] = []
    try:
        stream = pickle.dumps(value, 5, buffer_callback=out.append)
        by_value = b"__main__" in stream  # whatever lives in the driver's script is not importable in an actor
    except (pickle.PicklingError, AttributeError, TypeError):
        by_value = True
    if by_value:
        out.clear()
        try:
            stream = cloudpickle.dumps(value, 5, buffer_callback=out.append)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            kind = type(value).__name__
            raise ConfigurationError(f"a value of type {kind} cannot travel to another process: {error}") from error
    buffers.extend(buffer.raw() for buffer in out)
    return stream


def _aligned(at: int) -> int:
    return -(-at // _ALIGN) * _ALIGN


class Failure:
    """How a call failed, as it travels: the exception where it can be pickled, and the traceback of the place where it ran."""

    def __init__(self, error: BaseException, traceback: str, actor: str, call: str) -> None:
        self.traceback, self.actor, self.call = traceback, actor, call
        self.kind, self.summary = type(error).__name__, str(error)
        self.pickled = _portable(error)

    def exception(self) -> BaseException:
        """Return what to raise: the original exception with an `ActorError` as its cause, or that error alone."""
        remote = ActorError(f"{self.actor}, call {self.call!r}: {self.kind}: {self.summary}\n\n{self.traceback}")
        if self.pickled is None:
            return remote
        error: BaseException = pickle.loads(self.pickled)
        error.__cause__ = remote
        return error


def _portable(error: BaseException) -> bytes | None:
    """Pickle an exception, if what comes out again is of its type; some take other arguments than they pass on."""
    try:
        pickled = cloudpickle.dumps(error)
        return pickled if type(pickle.loads(pickled)).__name__ == type(error).__name__ else None
    except Exception:
        print(f"note: {type(error).__name__} does not survive pickling", file=sys.stderr)  # noqa: T201
        return None

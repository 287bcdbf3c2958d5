"""The mean gradient of one bucket, in the form that a codec allows: by all-reduce, or by an all-gather of messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.codecs.codec import Codec, State, decode_pieces
from chimera.codecs.envelope import header_of, read_header
from chimera.codecs.reduction import Reduction
from chimera.codecs.scratch import Scratch
from chimera.core.errors import CodecError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout, all_finite
from chimera.ddp.collectives import Bytes, Collectives

_PART = 1 << 15  # elements
_ALIGNED = 8  # bytes


class Exchange(ABC):
    """Computes mean gradients of a bucket, and keeps the state of its codec."""

    @abstractmethod
    def mean(self, vector: Flat, layout: Layout, collectives: Collectives) -> None:
        """Replace a vector, shape (n,), by the approximate mean of those of all processes; the same bits in all.

        If a vector is not finite in any process, the result is not finite in all, and no state changes. A gradient scaler
        then skips the step.
        """

    @abstractmethod
    def state(self) -> State:
        """Return the state of this process."""

    @abstractmethod
    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore what `state` returned."""


class Reduced(Exchange):
    """The mean by collectives of the codec's form for groups."""

    def __init__(self, reduction: Reduction) -> None:
        self._reduction = reduction

    def mean(self, vector: Flat, layout: Layout, collectives: Collectives) -> None:
        """Reduce the vector."""
        found = self._reduction.all_reduce(vector, layout, collectives.mean)
        if all_finite(found):
            self._reduction.commit()
        if found is not vector:
            np.copyto(vector, found)

    def state(self) -> State:
        """Return shared and own state."""
        shared = {f"shared.{name}": value for name, value in self._reduction.shared().items()}
        return shared | {f"own.{name}": value for name, value in self._reduction.state().items()}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore both."""
        parts: dict[str, dict[str, Any]] = {"shared": {}, "own": {}}
        for name, value in state.items():
            part, _, key = name.partition(".")
            parts[part][key] = value
        self._reduction.restore_shared(parts["shared"])
        if parts["own"]:
            self._reduction.restore(parts["own"])


class Gathered(Exchange):
    """The mean of the decoded messages of all processes."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._scratch = Scratch()
        self._slot = 0

    def mean(self, vector: Flat, layout: Layout, collectives: Collectives) -> None:
        """Encode the vector, and decode the messages of all processes in the order of ranks."""
        message = self._message(vector, layout) if all_finite(vector) else []
        found, slot = collectives.gather(message or [np.zeros(0, np.uint8)], self._slot)
        if not all(map(len, found)):  # a process has no message
            vector.fill(np.nan)
            return
        self._slot = slot
        share = np.float32(1 / len(found))
        for number, body in enumerate(found):
            for where, piece in decode_pieces(_read(body), vector, self._scratch):
                if number:
                    self._add(piece, share, vector[where])
                else:
                    np.multiply(piece, share, out=vector[where])

    def _add(self, piece: Flat, share: np.float32, out: Flat) -> None:
        """Add a multiple of a vector to another one, in parts that the processor's cache holds."""
        for begin in range(0, len(out), _PART):
            part = slice(begin, min(begin + _PART, len(out)))
            product = self._scratch.array("product", _PART, np.float32)[: part.stop - begin]
            np.multiply(piece[part], share, out=product)
            out[part] += product

    def _message(self, vector: Flat, layout: Layout) -> list[Bytes]:
        """Return a message; an empty one if the vector cannot be encoded, so that no process waits."""
        before = self._codec.state()
        try:
            encoded = self._codec.encode(vector, layout)
        except CodecError:
            self._codec.restore(before)
            return []
        header = header_of([encoded])
        size = np.frombuffer(len(header).to_bytes(_ALIGNED, "little"), np.uint8)
        arrays = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in encoded.arrays]
        return [size, *(part for array in (header, *arrays) for part in (array, _padding(len(array))))]

    def state(self) -> State:
        """Return the state of the codec."""
        return self._codec.state()

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore the state of the codec."""
        self._codec.restore(state)


def _padding(size: int) -> Bytes:
    """Return zeros to append to an array of this many bytes, so that the next one is aligned."""
    return np.zeros(-size % _ALIGNED, np.uint8)


def _read(body: Bytes) -> Encoded:
    size = int.from_bytes(body[:_ALIGNED].tobytes(), "little")
    (described,) = read_header(body[_ALIGNED : _ALIGNED + size].tobytes(), without=())
    begin, arrays = _ALIGNED + size + -size % _ALIGNED, []
    for kind, length in described.arrays:
        size = length * np.dtype(kind).itemsize
        arrays.append(body[begin : begin + size].view(kind))
        begin += size + -size % _ALIGNED
    return Encoded(described.codec, described.size, tuple(arrays), described.meta)

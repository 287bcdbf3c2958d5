"""The gradients of the blocks that a worker holds, and its packets and sums of a shuffle (Li et al. 2018)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.codecs.codec import CODECS
from chimera.codecs.envelope import decode_parts, header_of, read_header
from chimera.core.call import work
from chimera.core.errors import CodecError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout, reduce_in_order
from chimera.strategies.shuffle import Piece, Shuffle
from chimera.training.messages.message_key import Key, keyed

Bytes = NDArray[np.uint8]


class MappedBlocks:
    """Encodes packets from parts of blocks, and sums parts from the packets of other workers.

    Parameters
    ----------
    shuffle, place : the blocks are those that the worker at this place holds.
    gradients : gradient of each block, shape (P,); None if it was rejected, as on all its holders.
    layout : layout of the parameters.
    key : key of messages, for block 0.
    codec : name and options of the codec of each part of each block; it keeps no state.
    seed : seed of the codec's random numbers; the same on all workers.
    """

    def __init__(
        self,
        shuffle: Shuffle,
        place: int,
        gradients: Mapping[int, Flat | None],
        layout: Layout,
        *,
        key: Key,
        codec: tuple[str, Mapping[str, Any]] = ("identity", {}),
        seed: int = 0,
    ) -> None:
        self._shuffle, self._place, self._gradients, self._layout = shuffle, place, gradients, layout
        self._key, self._codec, self._seed = key, codec, seed
        self.bounds = layout.bounds(shuffle.workers)
        self._values: dict[tuple[int, int], Bytes] = {}

    def packet(self, number: int) -> Encoded:
        """Return a packet: the exclusive or of its pieces, padded with zeros; its metadata hold their lengths."""
        pieces = self._shuffle.pieces(number)
        values = [self._value(piece.part, piece.block) for piece in pieces]
        segments = [_segment(value, piece) for value, piece in zip(values, pieces, strict=True)]
        lengths = {f"length_{i}": float(value.size) for i, value in enumerate(values)}
        elements = sum(self._size(piece.part) // piece.segments for piece in pieces)
        work(elements=elements)
        return keyed(Encoded("xor", elements, (_xor(segments),), lengths), self._key._replace(block=number))

    def sums(self, there: tuple[int, ...], packets: Mapping[int, Encoded]) -> list[Encoded]:
        """Return the sum over all blocks of each part that this worker sums if the workers at ``there`` participate."""
        return [self._sum(part, there, packets) for part in self._shuffle.parts(self._place, there)]

    def _sum(self, part: int, there: tuple[int, ...], packets: Mapping[int, Encoded]) -> Encoded:
        values = []
        for block in range(self._shuffle.count):  # the same order on every worker gives the same bits
            if block in self._gradients:
                values.append(self._value(part, block))
            else:
                sources = self._shuffle.sources(part, block, there)
                values.append(np.concatenate([self._mine(packets[number], number, part) for number in sources]))
        vectors = [_vector_of(value, self._size(part)) for value in values if value.size]
        total = np.zeros(self._size(part), np.float32)
        if vectors:
            reduce_in_order(vectors, total)
        work(elements=total.size * len(vectors))
        return keyed(
            Encoded("identity", total.size, (total,), {"gradients": len(vectors)}), self._key._replace(block=part)
        )

    def _mine(self, message: Encoded, number: int, part: int) -> Bytes:
        """Return this worker's segment of a packet. The worker holds all other segments of the packet."""
        pieces = self._shuffle.pieces(number)
        own = next(i for i, piece in enumerate(pieces) if piece.part == part)
        known = [_segment(self._value(each.part, each.block), each) for i, each in enumerate(pieces) if i != own]
        work(elements=self._size(part) // pieces[own].segments)
        begin, end = _cut(int(message.meta[f"length_{own}"]), pieces[own])
        return _xor([message.arrays[0], *known])[: end - begin]

    def _value(self, part: int, block: int) -> Bytes:
        """Return a part of a block, encoded: the same bytes on all workers that hold the block; empty if it was rejected."""
        if (part, block) not in self._values:
            gradient, begin, end = self._gradients[block], self.bounds[part], self.bounds[part + 1]
            if gradient is None:
                self._values[part, block] = np.empty(0, np.uint8)
            else:
                # A new codec each time: the memory of a codec would differ between the workers that hold the block.
                seed = ((self._seed * 1_000_003 + self._key.step) * 1_000_003 + block) * 1_000_003 + part
                message = CODECS.create(*self._codec, seed=seed).pack(gradient[begin:end], self._layout.cut(begin, end))
                self._values[part, block] = _bytes_of(message)
        return self._values[part, block]

    def _size(self, part: int) -> int:
        return self.bounds[part + 1] - self.bounds[part]


def _bytes_of(message: Encoded) -> Bytes:
    """Return a message as bytes: length of the header, header, arrays."""
    header = header_of([message])
    length = np.frombuffer(len(header).to_bytes(4, "little"), np.uint8)
    return np.concatenate(
        [length, header, *(np.ascontiguousarray(a).reshape(-1).view(np.uint8) for a in message.arrays)]
    )


def _vector_of(value: Bytes, size: int) -> Flat:
    """Return the vector of a message of `_bytes_of`."""
    at = 4 + int.from_bytes(value[:4].tobytes(), "little")
    described = read_header(value[4:at].tobytes(), without=())
    arrays = [(np.dtype(kind), count) for each in described for kind, count in each.arrays]
    ends = [*itertools.accumulate((kind.itemsize * count for kind, count in arrays), initial=at)]
    if value.size != ends[-1]:
        raise CodecError(f"{value.size} bytes of packets came where {ends[-1]} are expected")
    cuts = zip(arrays, itertools.pairwise(ends), strict=True)
    return decode_parts(
        described, [value[begin:end].copy().view(kind) for (kind, _), (begin, end) in cuts], np.empty(size, np.float32)
    )


def _cut(length: int, piece: Piece) -> tuple[int, int]:
    each = -(-length // piece.segments)
    return min(piece.segment * each, length), min((piece.segment + 1) * each, length)


def _segment(value: Bytes, piece: Piece) -> Bytes:
    begin, end = _cut(value.size, piece)
    return value[begin:end]


def _xor(segments: Sequence[Bytes]) -> Bytes:
    """Return the exclusive or of segments, padded with zeros to the length of the longest."""
    out = np.zeros(max(segment.size for segment in segments), np.uint8)
    for segment in segments:
        out[: segment.size] ^= segment
    return out

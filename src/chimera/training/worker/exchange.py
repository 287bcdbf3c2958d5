"""Exchange of vectors with parameter servers: one message for each shard."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from chimera.codecs.codec import CODECS, Codec, State, decode_with
from chimera.codecs.held import Held
from chimera.core.call import coded
from chimera.core.device import copy_to, empty, on_host
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout, shard_views
from chimera.training.worker.shared_parameters import SharedParameters


class Exchange:
    """Decodes weights from servers and encodes vectors for them, on any device.

    Parameters
    ----------
    layout : layout of the parameters.
    codec : name and options of the uplink's codec; one codec object is created for each shard.
    seed : seed of the codecs.
    part : the parameters that are shared with servers; None if all are.
    """

    __slots__ = ("_bounds", "_codec", "_codecs", "_held", "_kept", "_layout", "_layouts", "_part", "_seed")

    def __init__(
        self, layout: Layout, codec: tuple[str, Mapping[str, Any]], *, seed: int, part: SharedParameters | None = None
    ) -> None:
        self._part = part
        self._layout, self._codec, self._seed = layout if part is None else part.layout, codec, seed
        self._bounds: Sequence[int] = ()
        self._layouts: Sequence[Layout] = ()
        self._codecs: list[Codec] = []
        self._held: list[Held] = []  # state of decoding, for each server
        self._kept: Sequence[Mapping[str, Any]] = ()  # restored states of codecs that are not created yet

    def load(self, weights: Sequence[Encoded], flat: Flat) -> Flat | None:
        """Decode the weights, one message for each shard, into ``flat``, shape (P,), an array or a tensor.

        If the single message holds all weights as float32, return them too, without a copy. The returned weights may be read
        during this call only. Otherwise return None.
        """
        self.cut(len(weights))
        if self._part is None and len(weights) == 1:
            at_hand = self.unpack(0, weights[0], flat)
            return at_hand if on_host(flat) else None
        target = flat if self._part is None else empty(self._layout.size, "float32", flat)
        for shard, piece in enumerate(shard_views(target, self._bounds)):
            self.unpack(shard, weights[shard], piece)
        if self._part is not None:
            self._part.put(target, flat)
        return None

    def unpack(self, shard: int, message: Encoded, piece: Flat) -> Flat | None:
        """Decode the weights of one shard into its piece of a vector; return them if the message holds them as float32."""
        values, self._held[shard] = decode_with(self._held[shard], message, len(piece), piece)
        if values is piece:
            return None
        copy_to(values, piece)
        return values

    def packed(self, flat: Flat) -> list[Encoded]:
        """Encode a vector of all parameters, shape (P,), as one message for each shard of the weights last loaded."""
        pieces = self.pieces(flat)
        if self._codec[0] != "identity":  # identity takes no modelled time
            for piece in pieces:
                coded(self._codec[0], "encode", len(piece))
        return [
            codec.pack(piece, layout) for codec, piece, layout in zip(self._codecs, pieces, self._layouts, strict=True)
        ]

    def pack(self, shard: int, piece: Flat) -> Encoded:
        """Encode one shard's piece of a vector."""
        coded(self._codec[0], "encode", len(piece))
        return self._codecs[shard].pack(piece, self._layouts[shard])

    def pieces(self, flat: Flat) -> list[Flat]:
        """Return a view of each shard's piece of a vector, shape (P,)."""
        return shard_views(flat if self._part is None else self._part.of(flat), self._bounds)

    @property
    def shards(self) -> int:
        """Number of servers; 0 before the first weights have arrived."""
        return len(self._codecs)

    def states(self) -> list[State]:
        """Return the states of the codecs, one for each shard; before the first weights, the restored states."""
        return [codec.state() for codec in self._codecs] or [dict(kept) for kept in self._kept]

    def restore(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Restore what `states` returned, now or when the codecs are created."""
        self._kept = states
        for codec, kept in zip(self._codecs, states, strict=False):
            codec.restore(kept)

    def cut(self, shards: int) -> None:
        """Prepare codecs for this number of shards. Nothing changes if the number is the current one."""
        if shards == len(self._codecs):
            return
        name, options = self._codec
        self._bounds, self._layouts = _cut(self._layout, shards)
        self._codecs = [CODECS.create(name, options, seed=self._seed * 1_000_003 + i) for i in range(shards)]
        self._held = [Held()] * shards
        self.restore(self._kept)


@lru_cache(maxsize=8)  # shared by the workers of one process
def _cut(layout: Layout, shards: int) -> tuple[Sequence[int], Sequence[Layout]]:
    """Return the bounds of the shards of a vector, and the layout of each shard."""
    bounds = layout.bounds(shards)
    return bounds, [layout.cut(begin, end) for begin, end in itertools.pairwise(bounds)]

"""What a worker makes of its servers' messages, and what it sends them: a message a shard."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from chimera.codecs.codec import CODECS, Codec, Held, State, decode_with
from chimera.core.device import empty, on_host, put
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout, shard_views
from chimera.training.worker.shared_parameters import SharedParameters


class Exchange:
    """Unpacks weights and packs vectors of their length, wherever these lie.

    Parameters
    ----------
    layout : of the parameters.
    codec : name and options of the codec of what is sent; each shard has one of its own.
    seed : of what is random in them.
    part : what of the parameters travels, if not all of them.
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
        self._held: list[Held] = []  # of the messages of each server
        self._kept: Sequence[Mapping[str, Any]] = ()  # what codecs remembered that are not made yet

    def load(self, weights: Sequence[Encoded], flat: Flat) -> Flat | None:
        """Unpack the weights, a message a shard, into ``flat``, shape (P,), an array or a tensor.

        Returns the same vector if a message has the whole of it at hand, to be read as long as the call lasts; else None.
        """
        self.cut(len(weights))
        target = flat if self._part is None else empty(self._layout.size, "float32", flat)
        at_hand = None
        for shard, piece in enumerate(shard_views(target, self._bounds)):
            at_hand = self.unpack(shard, weights[shard], piece)
        if self._part is None:
            return at_hand if len(weights) == 1 and on_host(flat) else None
        self._part.put(target, flat)
        return None

    def unpack(self, shard: int, message: Encoded, piece: Flat) -> Flat | None:
        """Unpack the weights of one shard into its piece of a vector; return them if the message has them at hand."""
        values, self._held[shard] = decode_with(self._held[shard], message, len(piece), piece)
        if values is piece:
            return None
        put(values, piece)
        return values

    def packed(self, flat: Flat) -> list[Encoded]:
        """Return a vector in the form of all parameters as messages, one for each shard of the weights last loaded."""
        ready = zip(self._codecs, self.pieces(flat), self._layouts, strict=True)
        return [codec.pack(piece, layout) for codec, piece, layout in ready]

    def pack(self, shard: int, piece: Flat) -> Encoded:
        """Return one shard's piece of a vector as a message."""
        return self._codecs[shard].pack(piece, self._layouts[shard])

    def pieces(self, flat: Flat) -> list[Flat]:
        """Return a view of each shard's part of such a vector."""
        return shard_views(flat if self._part is None else self._part.of(flat), self._bounds)

    @property
    def shards(self) -> int:
        """Over how many servers the weights are spread; 0 before the first came."""
        return len(self._codecs)

    def states(self) -> list[State]:
        """Return what the codecs remember, one for each shard: before the first weights what was restored, if anything."""
        return [codec.state() for codec in self._codecs] or [dict(kept) for kept in self._kept]

    def restore(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Take back what `states` returned, at once or when the codecs are made."""
        self._kept = states
        for codec, kept in zip(self._codecs, states, strict=False):
            codec.restore(kept)

    def cut(self, shards: int) -> None:
        """Be ready for so many shards; what it is ready for already stays as it is."""
        if shards == len(self._codecs):
            return
        name, options = self._codec
        self._bounds, self._layouts = _cut(self._layout, shards)
        self._codecs = [CODECS.create(name, options, seed=self._seed * 1_000_003 + i) for i in range(shards)]
        self._held = [Held()] * shards
        self.restore(self._kept)


@lru_cache(maxsize=8)  # a process that holds many workers cuts once for all
def _cut(layout: Layout, shards: int) -> tuple[Sequence[int], Sequence[Layout]]:
    """Return where the shards of a vector begin and end, and the layout of each."""
    bounds = layout.bounds(shards)
    return bounds, [layout.cut(begin, end) for begin, end in itertools.pairwise(bounds)]

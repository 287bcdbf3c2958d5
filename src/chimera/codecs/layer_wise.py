"""A codec for each layer."""

from __future__ import annotations

import fnmatch
import itertools
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.codecs.codec import CODECS, Codec, Curvature, State, Table
from chimera.codecs.envelope import decode_parts, header_of, read_header
from chimera.codecs.fields import array, output_for
from chimera.core.errors import CodecError, ConfigurationError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout


@CODECS.register("layer-wise")
class LayerWise(Codec):
    """A codec for each layer, as examined by Dutta et al., 2020 (AAAI, on theory and practice of compressed communication).

    Tensors whose names match a pattern are encoded by the pattern's codec. Neighbouring tensors with one pattern are encoded
    together.

    Parameters
    ----------
    layers : a table from patterns, as for file names (``*.bias``, ``conv?.*``), to codecs. The first match counts.
    default : codec of all other tensors; default ``identity``.
    """

    on_device = True

    def __init__(self, *, layers: dict[str, Any] | None = None, default: Table | Codec = "identity") -> None:
        self._tables: dict[str, Any] = dict(layers or {})
        self._tables.setdefault("*", default)
        codecs = [CODECS.inside("layer-wise", table) for table in self._tables.values()]
        if any(codec.__class__ is LayerWise for codec in codecs):
            raise ConfigurationError("codec 'layer-wise': a layer's codec cannot be layer-wise too")
        self._carries = any(codec.carries for codec in codecs)
        self._makes_model = any(codec.makes_model for codec in codecs)
        self._curvature: Curvature | None = None
        self._codecs: list[tuple[int, int, Codec]] = []
        self._layout: Layout | None = None
        self._kept: dict[str, dict[str, NDArray[Any]]] = {}  # states of codecs that are not created yet

    @property
    def carries(self) -> bool:
        """Whether one of the codecs adds errors to its next message."""
        return self._carries

    @property
    def makes_model(self) -> bool:
        """Whether one of the codecs makes a part of the model."""
        return self._makes_model

    def encode(self, vector: Flat, layout: Layout) -> Encoded:
        """Encode each stretch of tensors by its codec."""
        if layout != self._layout:
            self._choose(layout)
        # A codec may reuse its memory for its next message. Here each codec encodes only one message.
        messages = [codec.pack(vector[b:e], layout.cut(b, e)) for b, e, codec in self._codecs]
        arrays = itertools.chain.from_iterable(message.arrays for message in messages)
        return Encoded("layer-wise", len(vector), (header_of(messages), *arrays))

    def decode(self, encoded: Encoded, out: Flat | None = None) -> Flat:
        """Decode stretch by stretch."""
        described = read_header(array(encoded, 0, np.uint8).data, without=("layer-wise",))
        kinds = [each for one in described for each in one.arrays]
        if len(kinds) != len(encoded.arrays) - 1:
            raise CodecError(f"a layer-wise message has {len(encoded.arrays) - 1} arrays, its header says {len(kinds)}")
        arrays = [array(encoded, i, kind, size) for i, (kind, size) in enumerate(kinds, 1)]
        return decode_parts(described, arrays, output_for(encoded, out))

    def use_curvature(self, curvature: Curvature) -> None:
        """Pass each codec its part of the curvature when the codec is created."""
        self._curvature = curvature

    def reseed(self, seed: int) -> None:
        """Restart the random numbers with another seed."""
        super().reseed(seed)
        for place, (_, _, codec) in enumerate(self._codecs):
            codec.reseed(seed + place)

    def state(self) -> State:
        """Return the states of the codecs, by place and name."""
        states = {str(place): codec.state() for place, (_, _, codec) in enumerate(self._codecs)} or self._kept
        return {f"{place}.{name}": value for place, state in states.items() for name, value in state.items()}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a state that `state` returned. The next message creates the codecs again, with their states."""
        self._kept = {}
        for key, value in state.items():
            place, _, name = key.partition(".")
            self._kept.setdefault(place, {})[name] = value
        self._codecs, self._layout = [], None

    def _choose(self, layout: Layout) -> None:
        spans = zip(layout.names, layout.offsets, layout.offsets[1:], strict=False)
        parts = ((next(p for p in self._tables if fnmatch.fnmatchcase(name, p)), b, e) for name, b, e in spans if b < e)
        self._codecs = []
        for pattern, group in itertools.groupby(parts, key=lambda part: part[0]):
            stretch = list(group)
            codec = CODECS.of(self._tables[pattern])
            codec.reseed(self.seed + len(self._codecs))
            if str(len(self._codecs)) in self._kept:
                codec.restore(self._kept[str(len(self._codecs))])
            begin, end = stretch[0][1], stretch[-1][2]
            if self._curvature is not None:
                codec.use_curvature(partial(_piece, self._curvature, begin, end))
            self._codecs.append((begin, end, codec))
        self._layout, self._kept = layout, {}


def _piece(curvature: Curvature, begin: int, end: int) -> Flat | None:
    whole = curvature()
    return None if whole is None else whole[begin:end]

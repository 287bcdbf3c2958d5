"""Quantization to levels of a table, given or fitted to the data."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from chimera.codecs.codec import CODECS, Codec
from chimera.codecs.fields import array, bounds_of, check_finite, finite, lengths_of, output_for, tensor_bounds
from chimera.codecs.kernels import kernels
from chimera.codecs.kernels.layout import code_width, packed_size
from chimera.codecs.scratch import Scratch
from chimera.core.device import empty, to_host
from chimera.core.errors import CodecError, ConfigurationError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout

_SAMPLE = 1 << 14
_ROUNDS = 12


@CODECS.register("nonuniform")
class Nonuniform(Codec):
    """Ramezani-Kebrya et al., 2021: NUQSGD: Provably Communication-efficient Data-parallel SGD via Nonuniform Quantization.

    Each magnitude, divided by the largest of its tensor, becomes one of a few levels between 0 and 1.

    Parameters
    ----------
    levels : the levels, ascending from 0 to 1; NUQSGD uses ``[0, 0.125, 0.25, 0.5, 1]``. Default: ``count`` levels are fitted
        to a sample of each vector (Lloyd, 1982: Least Squares Quantization in PCM), and sent with it.
    count : number of levels to fit, from 2 to 128; default 8.
    stochastic : whether to round at random to one of the two nearest levels, without bias; default False, to the nearest level.
    """

    on_device = True

    def __init__(self, *, levels: list[float] | None = None, count: int = 8, stochastic: bool = False) -> None:
        if not 2 <= count <= 128:
            raise ConfigurationError(f"count must be from 2 to 128, not {count}")
        self._table = None if levels is None else np.array(levels, np.float32)
        if self._table is not None and not _is_table(self._table):
            raise ConfigurationError(f"levels must ascend from 0 to 1, 2 to 128 of them, not {levels}")
        self._count, self._stochastic, self._scratch = count, stochastic, Scratch()

    def encode(self, vector: Flat, layout: Layout) -> Encoded:
        """Choose the levels, and quantize the vector."""
        k, bounds = kernels(vector), tensor_bounds(layout, len(vector))
        spans = list(itertools.pairwise(bounds))
        norms = np.array([k.abs_max(vector[begin:end]) for begin, end in spans], np.float32)
        check_finite(norms)
        table = self._fitted(vector, spans, norms) if self._table is None else self._table
        return encode_table(
            "nonuniform", vector, bounds, norms, table, self._scratch, self.next_key if self._stochastic else None
        )

    def decode(self, encoded: Encoded, out: Flat | None = None) -> Flat:
        """Return the values of the levels."""
        return decode_table(encoded, out)

    def _fitted(self, vector: Flat, spans: list[tuple[int, int]], norms: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the levels at which the mean square error of a sample is least, by Lloyd's iterations."""
        table = np.linspace(0, 1, self._count, dtype=np.float32)
        stride, large = max(len(vector) // _SAMPLE, 1), norms >= np.float32(1e-37)
        samples = [to_host(abs(vector[b:e:stride])) for b, e in itertools.compress(spans, large)]
        parts = [sample / norm for sample, norm in zip(samples, norms[large], strict=True)]
        if not parts:
            return table
        sample = np.sort(np.concatenate(parts)).astype(np.float64)
        table = np.quantile(sample, np.linspace(0, 1, self._count) ** 0.5).astype(np.float64)
        for _ in range(_ROUNDS):
            table[0], table[-1] = 0, 1
            edges = np.searchsorted(sample, (table[1:] + table[:-1]) / 2)
            sums = np.add.reduceat(np.append(sample, 0), [0, *edges])
            counts = np.diff([0, *edges, sample.size])
            table = np.where(counts > 0, sums / np.maximum(counts, 1), table)
        table[0], table[-1] = 0, 1
        found = np.maximum.accumulate(table).astype(np.float32)
        return found if _is_table(found) else np.linspace(0, 1, self._count, dtype=np.float32)


def encode_table(
    name: str,
    vector: Flat,
    bounds: list[int],
    norms: NDArray[np.float32],
    table: NDArray[np.float32],
    scratch: Scratch,
    next_key: Callable[[], tuple[np.uint32, np.uint32]] | None = None,
) -> Encoded:
    """Encode each element as its sign and the nearest level of ``table``, in units of its tensor's norm.

    With ``next_key``, round at random to one of the two nearest levels.
    """
    k, codes = kernels(vector), scratch.like(vector, "codes", len(vector), "uint8")
    for norm, begin, end in zip(norms, bounds, bounds[1:], strict=False):
        key = (np.uint32(0), np.uint32(0)) if next_key is None else next_key()
        k.to_table(vector[begin:end], norm, table, next_key is not None, *key, codes[begin:end])
    width = code_width(2 * table.size)
    packed = scratch.message(vector, "packed", packed_size(len(vector), width), np.uint8)
    k.pack(codes, width, packed)
    return Encoded(name, len(vector), (packed, norms, table, *lengths_of(bounds)))


def decode_table(encoded: Encoded, out: Flat | None) -> Flat:
    """Decode a message of `encode_table`."""
    table = array(encoded, 2, np.float32)
    if not _is_table(table):
        raise CodecError(f"the levels of a {encoded.codec} message do not ascend from 0 to 1")
    bounds, width = bounds_of(encoded, 3), code_width(2 * table.size)
    packed = array(encoded, 0, np.uint8, packed_size(encoded.size, width))
    norms = finite(encoded, array(encoded, 1, np.float32, len(bounds) - 1), "scales")
    out = output_for(encoded, out)
    k, codes = kernels(out), empty(encoded.size, "uint8", out)
    k.unpack(packed, width, codes)
    if len(codes) and int(codes.max()) >= 2 * table.size:
        raise CodecError(f"a code of a {encoded.codec} message is above {2 * table.size - 1}")
    for norm, begin, end in zip(norms, bounds, bounds[1:], strict=False):
        values = norm * np.concatenate([table, -table])
        k.from_table(codes[begin:end], values, out[begin:end])
    return out


def _is_table(levels: NDArray[np.float32]) -> bool:
    ascends = 2 <= levels.size <= 128 and levels[0] == 0 and levels[-1] == 1
    return bool(ascends and np.isfinite(levels).all() and (np.diff(levels) >= 0).all())

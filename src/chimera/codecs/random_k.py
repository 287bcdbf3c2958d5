"""Elements drawn at random, with the same draw at sender and receiver."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chimera.codecs.codec import CODECS, Codec
from chimera.codecs.fields import array, check_finite, count_arrays, finite, integer, output_for
from chimera.codecs.random_key import key_of
from chimera.codecs.selection import count_of
from chimera.codecs.top_k import check_ratio
from chimera.core.device import arange, namespace, to_device_of, to_host
from chimera.core.errors import CodecError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout

_ROUNDS = 4
_FACTOR_1, _FACTOR_2 = 0x9E3779B97F4A7C15 - (1 << 64), 0xBF58476D1CE4E5B9 - (1 << 64)


@CODECS.register("random-k")
class RandomK(Codec):
    """Konecny et al., 2016: Federated Learning: Strategies for Improving Communication Efficiency (random mask).

    No indices are sent: the receiver computes them from the seed and the number of the message.

    Parameters
    ----------
    ratio : share of the elements that is sent; default 0.01, 0.32 bits for each element of the vector.
    scaled : whether to divide the elements by the ratio, which gives no bias and a large variance; default False, meant for
        ``error_feedback = true``.
    """

    on_device = True

    def __init__(self, *, ratio: float = 0.01, scaled: bool = False) -> None:
        check_ratio(ratio)
        self._ratio, self._scaled = ratio, scaled

    def encode(self, vector: Flat, layout: Layout) -> Encoded:  # noqa: ARG002 - tensors do not matter here
        """Draw and encode the elements."""
        count, size = self.count, len(vector)
        key = self.next_key()
        values = to_host(vector[indices_of(size, count_of(size, self._ratio), key, vector)])
        check_finite(values)
        if self._scaled:
            limit = np.finfo(np.float32).max
            values = np.clip(values * np.float64(size / max(values.size, 1)), -limit, limit).astype(np.float32)
        meta = {"seed": self.seed & 0xFFFFFFFF, "seed_high": self.seed >> 32 & 0xFFFFFFFF, "count": count}
        return Encoded("random-k", size, (values,), {**meta, "values": values.size})

    def decode(self, encoded: Encoded, out: Flat | None = None) -> Flat:
        """Return the vector, with zeros for all other elements."""
        count_arrays(encoded, 1)
        values = finite(encoded, array(encoded, 0, np.float32), "values")
        if values.size != integer(encoded, "values", 0, encoded.size):
            raise CodecError(f"a random-k message has {values.size} values, and says otherwise")
        word = 0xFFFFFFFF
        seed = integer(encoded, "seed", 0, word) | integer(encoded, "seed_high", 0, word) << 32
        out = output_for(encoded, out)
        indices = indices_of(encoded.size, values.size, key_of(seed, integer(encoded, "count", 0, 1 << 53)), out)
        out[:] = 0
        out[indices] = to_device_of(values, out)
        return out


def indices_of(size: int, count: int, key: tuple[np.uint32, np.uint32], vector: Flat) -> NDArray[np.int64]:
    """Return the first ``count`` of a permutation of ``size`` indices that the key determines, on the device of ``vector``.

    A Feistel network permutes the numbers below a power of four. The permutation is applied again to results of ``size`` or
    more.
    """
    half = max((max(size - 1, 1).bit_length() + 1) // 2, 1)
    indices = _permuted(arange(count, vector), half, key)
    beyond = namespace(indices).argwhere(indices >= size)[:, 0]
    while len(beyond):
        indices[beyond] = _permuted(indices[beyond], half, key)
        beyond = beyond[indices[beyond] >= size]
    return indices


def _permuted(numbers: NDArray[np.int64], half: int, key: tuple[np.uint32, np.uint32]) -> NDArray[np.int64]:
    """Apply the permutation. int64 keeps the lower half of products and sums as uint64 would; torch has int64 only."""
    mask = (1 << half) - 1
    left, right = numbers >> half, numbers & mask
    for i in range(_ROUNDS):
        x = (right + int(key[i & 1])) * (_FACTOR_1 + 2 * i)
        x ^= (x >> 32) & 0xFFFFFFFF
        x *= _FACTOR_2
        left, right = right, left ^ (x >> 32) & mask
    return left << half | right

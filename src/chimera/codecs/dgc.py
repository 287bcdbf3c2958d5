"""The largest elements of accumulated momentum."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.codecs.codec import CODECS, State
from chimera.codecs.kernels.layout import SQUARE
from chimera.codecs.moments import moments
from chimera.codecs.piecewise import DecodeBuffer, Piecewise
from chimera.codecs.selection import count_of, select_sampled
from chimera.codecs.sparse import decode_indices, encode_indices
from chimera.codecs.top_k import check_ratio
from chimera.core.device import namespace, to_device_of, to_host
from chimera.core.errors import CodecError, ConfigurationError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout


@CODECS.register("dgc")
class DGC(Piecewise):
    """Lin et al., 2018: Deep Gradient Compression: Reducing the Communication Bandwidth for Distributed Training.

    Each worker accumulates u <- momentum u + gradient and v <- v + u, and sends the largest elements of v. The elements sent
    are set to 0 in u and v (momentum factor masking). The server's optimizer must be plain SGD without momentum.

    Parameters
    ----------
    ratio : final share of the elements that is sent; default 0.001.
    momentum : momentum factor; default 0.9.
    clip : Euclidean norm to which a gradient is clipped first; default 0, no clipping. The paper divides the norm for the whole
        cluster by the root of the number of workers.
    warm_up : number of messages in which the ratio falls from 0.25 to ``ratio``, by equal factors; default 0.
    """

    def __init__(self, *, ratio: float = 0.001, momentum: float = 0.9, clip: float = 0.0, warm_up: int = 0) -> None:
        check_ratio(ratio)
        if not 0 <= momentum < 1:
            raise ConfigurationError(f"momentum must be from 0 to below 1, not {momentum}")
        if not 0 <= clip < math.inf or warm_up < 0:
            raise ConfigurationError(f"clip and warm_up must not be negative: {clip}, {warm_up}")
        self._ratio, self._momentum, self._clip, self._warm_up = ratio, momentum, clip, warm_up
        self._velocity = self._total = np.zeros(0, np.float32)

    @property
    def carries(self) -> bool:
        """True: the accumulated sum keeps what was not sent."""
        return True

    def encode(self, vector: Flat, layout: Layout) -> Encoded:  # noqa: ARG002 - tensors do not matter here
        """Accumulate the gradient, and encode the largest elements of the total.

        Raises
        ------
        CodecError : the total is not finite. Velocity and total are then set to zero.
        """
        if len(self._velocity) != len(vector):
            self._velocity, self._total = (namespace(vector).zeros_like(vector) for _ in range(2))
        self._velocity, self._total = to_device_of(self._velocity, vector), to_device_of(self._total, vector)
        scale, done = self._scale(vector), self.count
        with np.errstate(over="ignore", invalid="ignore"):
            self._velocity *= np.float32(self._momentum)
            self._velocity += vector if scale == 1 else vector * np.float32(scale)
            self._total += self._velocity
        indices, values = select_sampled(
            self._total, count_of(len(vector), self._ratio_at(done)), int(self.next_key()[0])
        )
        try:
            encoded = encode_indices("dgc", len(vector), indices, values)
        except CodecError:  # a total that is not finite would stay so
            self._velocity = self._total = np.zeros(0, np.float32)
            raise
        self._velocity[indices] = 0
        self._total[indices] = 0
        return encoded

    def pieces(self, encoded: Encoded, buffer: DecodeBuffer) -> Iterator[tuple[slice, Flat]]:
        """Yield the vector, with zeros for all other elements."""
        return decode_indices(encoded, buffer)

    def state(self) -> State:
        """Return velocity and total."""
        return {**super().state(), "velocity": to_host(self._velocity), "total": to_host(self._total)}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a state that `state` returned."""
        super().restore(state)
        self._velocity, self._total = (np.array(state[name], np.float32) for name in ("velocity", "total"))

    def _scale(self, vector: Flat) -> float:
        norm = (
            math.sqrt(sum(each.square for each in moments(vector, [0, len(vector)], columns=SQUARE)))
            if self._clip and len(vector)
            else 0.0
        )
        return self._clip / norm if norm > self._clip else 1.0

    def _ratio_at(self, message: int) -> float:
        if message >= self._warm_up or self._ratio >= 0.25:
            return self._ratio
        return float(0.25 * (self._ratio / 0.25) ** (message / self._warm_up))

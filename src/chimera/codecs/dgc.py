"""The largest elements of a velocity."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.codecs.codec import CODECS, State
from chimera.codecs.kernels.layout import SQUARE
from chimera.codecs.largest import by_sample, share
from chimera.codecs.moments import moments
from chimera.codecs.pieces import Piecewise, Target
from chimera.codecs.sparse import decode_places, encode_places
from chimera.codecs.top_k import check_ratio
from chimera.core.device import beside, namespace, to_host
from chimera.core.errors import ConfigurationError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout


@CODECS.register("dgc")
class DGC(Piecewise):
    """Lin et al., 2018: Deep Gradient Compression: Reducing the Communication Bandwidth for Distributed Training.

    Each worker has the momentum, and sends the largest elements of what its momentum adds up to; those are then forgotten in
    both (momentum factor masking). The server's optimizer is to be plain SGD without momentum.

    Parameters
    ----------
    ratio : which part of the elements travels in the end.
    momentum : of the velocity.
    clip : the Euclidean norm that a gradient is cut to first; 0 cuts nothing. The paper takes that of the whole divided by
        the root of the number of workers.
    warm_up : messages over which the ratio falls from 0.25 to its end, by equal factors.
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
        """Yes, in its total."""
        return True

    def encode(self, vector: Flat, layout: Layout) -> Encoded:  # noqa: ARG002 - tensors do not matter here
        """Add the gradient to the velocity, that to the total, and send the largest elements of the total."""
        if len(self._velocity) != len(vector):
            self._velocity, self._total = (namespace(vector).zeros_like(vector) for _ in range(2))
        self._velocity, self._total = beside(self._velocity, vector), beside(self._total, vector)
        scale, done = self._scale(vector), self.count
        with np.errstate(over="ignore", invalid="ignore"):
            self._velocity *= np.float32(self._momentum)
            self._velocity += vector if scale == 1 else vector * np.float32(scale)
            self._total += self._velocity
        places, values = by_sample(self._total, share(len(vector), self._ratio_at(done)), int(self.next_key()[0]))
        encoded = encode_places("dgc", len(vector), places, values)
        self._velocity[places] = 0
        self._total[places] = 0
        return encoded

    def pieces(self, encoded: Encoded, target: Target) -> Iterator[tuple[slice, Flat]]:
        """Return the elements among zeros."""
        return decode_places(encoded, target)

    def state(self) -> State:
        """Return velocity and total."""
        return {**super().state(), "velocity": to_host(self._velocity), "total": to_host(self._total)}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take back what `state` returned."""
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

"""Stochastic quantization to three values: -s, 0 and s."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from chimera.codecs.codec import CODECS
from chimera.codecs.fields import tensor_bounds
from chimera.codecs.levels import Levels, decode_levels, encode_levels
from chimera.codecs.moments import moments
from chimera.codecs.piecewise import DecodeBuffer, Piecewise
from chimera.codecs.scratch import Scratch
from chimera.core.errors import ConfigurationError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout


@CODECS.register("terngrad")
class TernGrad(Piecewise):
    """Wen, Xu, Yan, Wu, Wang, Chen, Li, 2017: TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep Learning.

    An element x of a tensor with largest magnitude s becomes ``s sign(x)`` with probability ``|x| / s``, else 0; 2 bits for
    each element.

    Parameters
    ----------
    clip : elements beyond this number of standard deviations of their tensor are clipped to this bound; default 2.5, as in the
        paper. This gives fewer zeros and a small bias. 0 disables clipping, and the codec has no bias.
    """

    def __init__(self, *, clip: float = 2.5) -> None:
        if not 0 <= clip < math.inf:
            raise ConfigurationError(f"clip must be at least 0 and finite, not {clip}")
        self._clip, self._how, self._scratch = clip, Levels(levels=1, stochastic=True), Scratch()

    def encode(self, vector: Flat, layout: Layout) -> Encoded:
        """Quantize the vector at random."""
        bounds = tensor_bounds(layout, len(vector))
        norms = None
        if self._clip:
            found = moments(vector, bounds, again=True)
            norms = np.array(
                [min(t.top, self._clip * t.deviation) if t.deviation else t.top for t in found], np.float32
            )
        return encode_levels("terngrad", vector, bounds, self._how, self._scratch, key=self.next_key(), norms=norms)

    def pieces(self, encoded: Encoded, buffer: DecodeBuffer) -> Iterator[tuple[slice, Flat]]:
        """Yield the values."""
        return decode_levels(encoded, buffer)

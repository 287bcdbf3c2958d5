"""Quantization of weights to few levels with the least increase of the loss."""

from __future__ import annotations

import itertools
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from chimera.codecs.codec import CODECS, Codec, Curvature
from chimera.codecs.fields import check_finite, tensor_bounds
from chimera.codecs.kernels import kernels
from chimera.codecs.nonuniform import decode_table, encode_table
from chimera.codecs.scratch import Scratch
from chimera.core.device import to_host
from chimera.core.errors import CodecError, ConfigurationError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout

_SAMPLE = 1 << 14
_ROUNDS, _STARTS = 30, 40
_CLOSE = 1e-6
_MAX_FLOAT32 = float(np.finfo(np.float32).max)


@CODECS.register("loss-aware")
class LossAware(Codec):
    """Hou and Kwok, 2018: Loss-aware Weight Quantization of Deep Networks. For weights: the server keeps full precision.

    Each tensor w becomes a b, with a scale a and levels b that minimise sum d (a b - w)**2. d is the curvature of the loss; as
    in the paper, it is the root of Adam's second moment. If the server's optimizer has none (plain SGD), d is 1, and this is
    least squares quantization. As in the paper, the quantized network is the one that is trained, evaluated and saved. The
    weights in full precision only accumulate small steps.

    Parameters
    ----------
    bits : bits of an element, 2 to 8; default 2, with the levels -1, 0 and 1 (the paper's LAT).
    levels : ``linear`` (default), or ``logarithmic``: 1, 1/2, 1/4 and so on, besides 0 and the signs (its LAQ).
    exact : whether to find the best scale by sorting, for 2 bits only (LATe); default False. Else scale and levels are
        optimized alternately (LATa). The iterations start on a sample of each tensor, at the best of 40 scales. The last
        iteration uses the whole tensor.
    """

    on_device = True

    def __init__(
        self, *, bits: int = 2, levels: Literal["linear", "logarithmic"] = "linear", exact: bool = False
    ) -> None:
        if not 2 <= bits <= 8:
            raise ConfigurationError(f"bits must be from 2 to 8, not {bits}")
        if exact and bits > 2:
            raise ConfigurationError(f"the exact scale is known for 2 bits only, not for {bits}")
        top = 2 ** (bits - 1) - 1
        above = np.arange(1, top + 1) / top if levels == "linear" else 2.0 ** np.arange(1 - top, 1)
        self._table = np.concatenate([[0], above]).astype(np.float32)
        self._exact, self._scratch = exact, Scratch()
        self._curvature: Curvature = _unknown

    @property
    def makes_model(self) -> bool:
        """True: the encoded weights are the model."""
        return True

    def use_curvature(self, curvature: Curvature) -> None:
        """Set the source of the curvature, which is read before each message."""
        self._curvature = curvature

    def encode(self, vector: Flat, layout: Layout) -> Encoded:
        """Find the scales and choose the levels, on the host: servers have weights and curvature there."""
        vector = to_host(vector)
        bounds, d = tensor_bounds(layout, vector.size), self._curvature()
        if d is not None and d.shape != vector.shape:
            raise CodecError(f"a curvature of shape {d.shape} is not that of {vector.size} weights")
        spans = list(itertools.pairwise(bounds))
        tops = np.array([kernels(vector).abs_max(vector[b:e]) for b, e in spans], np.float32)
        check_finite(tops)
        scales = [
            self._scale(vector[b:e], None if d is None else d[b:e], float(top))
            for (b, e), top in zip(spans, tops, strict=True)
        ]
        return encode_table("loss-aware", vector, bounds, np.array(scales, np.float32), self._table, self._scratch)

    def decode(self, encoded: Encoded, out: Flat | None = None) -> Flat:
        """Return the scaled levels."""
        return decode_table(encoded, out)

    def _scale(self, w: Flat, d: Flat | None, top: float) -> float:
        """Return the scale of a tensor whose largest magnitude is ``top``."""
        if top == 0:
            return 0.0
        if d is not None and not (np.isfinite(d).all() and d.min() >= 0 and d.max() > 0):
            d = None  # for instance before the first step
        if self._exact:
            return best_scale(w, d)
        stride = -(-w.size // _SAMPLE)
        few = np.ascontiguousarray(w[::stride])
        weights = None if d is None else np.ascontiguousarray(d[::stride])
        # The iterations converge to a local minimum, so they start at the best of several scales.
        scale = max(
            (top * 2.0 ** (-i / 8) for i in range(_STARTS)),
            key=lambda each: _iterate(few, weights, each, self._table)[1],
        )
        for _ in range(_ROUNDS):
            before, scale = scale, _iterate(few, weights, scale, self._table)[0] or scale
            if abs(scale - before) <= _CLOSE * before:
                break
        return _iterate(w, d, scale, self._table)[0] or top


def _unknown() -> None:
    return None


def best_scale(w: Flat, d: Flat | None) -> float:
    """Return the scale a that minimises sum d (a b - w)**2 over a and b of -1, 0 and 1.

    For any a, the best b is 0 if ``|w| <= a / 2``; elements with b = 1 or -1 are thus the largest ones. For the k largest
    elements, let A be the sum of d |w|, and D the sum of d. The best a is A / D, and it lowers the sum by A**2 / D. The best k
    maximises A**2 / D.
    """
    magnitudes = np.abs(w.astype(np.float64))
    order = np.argsort(-magnitudes, kind="stable")
    weights = np.ones(w.size) if d is None else d.astype(np.float64)[order]
    total, weight = np.cumsum(weights * magnitudes[order]), np.cumsum(weights)
    gain = np.divide(total * total, weight, out=np.zeros_like(total), where=weight > 0)
    best = int(np.argmax(gain))
    return float(total[best] / weight[best])


def _iterate(w: Flat, d: Flat | None, scale: float, table: NDArray[np.float32]) -> tuple[float, float]:
    """Return the best scale for the levels nearest at this ``scale``, and the decrease of the sum d w**2.

    Both are 0 if all levels are 0.
    """
    nothing = np.empty(0, np.float32)
    above, below = kernels(w).fit_table(w, nothing if d is None else d, np.float32(scale), table)
    return (min(above / below, _MAX_FLOAT32), above * above / below) if below > 0 else (0.0, 0.0)

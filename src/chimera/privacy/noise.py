"""The Gaussian mechanism (Dwork and Roth 2014, "The Algorithmic Foundations of Differential Privacy", appendix A)."""

from __future__ import annotations

import math
import os
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from chimera.core.parameters import Flat

NoiseSeed = Literal["run", "system"]
"""Source of noise: the ``system``, which cannot be repeated, or the seed of the ``run``, which protects nothing."""
TAIL = 12.0
"""Bound of the noise in standard deviations: the probability of a larger element is below 1e-32."""
_WORD = (1 << 64) - 1
_CHUNK = 1 << 16  # elements drawn at once
_DOWN = 1 - 2.0**-22  # factor that keeps the norm within the bound despite rounding
_LEAST = 2.0**-126  # least factor: smaller numbers of float32 have fewer bits, and would round up
_SCALINGS = 4  # at most: three from the largest norm of float32 to its smallest number, and one for rounding


class Source(Protocol):
    """A source of noise."""

    def standard_normal(self, size: int, dtype: Any) -> NDArray[Any]:
        """Return independent draws of the standard normal distribution, shape (size,)."""


class SystemNoise:
    """Normal draws from the operating system's cryptographic random numbers only (Box and Muller 1958).

    The output of a statistical generator, such as NumPy's, would reveal its other draws.
    """

    def standard_normal(self, size: int, dtype: Any = np.float32) -> NDArray[Any]:
        """See `Source`. No draw is beyond 9.5 standard deviations, because the uniform numbers have 64 bits."""
        drawn = np.empty(size, dtype)
        for low in range(0, size, _CHUNK):
            pairs = (min(_CHUNK, size - low) + 1) // 2
            words = np.frombuffer(os.urandom(16 * pairs), np.uint64)
            uniform = (words + 0.5) * 2.0**-64  # above 0; the largest round to 1, whose logarithm is 0
            radius, angle = np.sqrt(-2 * np.log(uniform[:pairs])), 2 * np.pi * uniform[pairs:]
            both = np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))
            drawn[low : low + _CHUNK] = both[: min(_CHUNK, size - low)]
        return drawn


def clip(update: Flat, norm: float) -> float:
    """Scale an update, shape (n,), in place, to an L2 norm of at most ``norm``; return its norm before."""
    had = reached = _norm(update)
    for _ in range(_SCALINGS):
        if reached <= norm:
            return had
        update *= np.float32(max(norm / reached * _DOWN, _LEAST))
        reached = _norm(update)
    if not reached <= norm:  # the bound is below the resolution of float32
        update[:] = 0
    return had


def _norm(update: Flat) -> float:
    return math.sqrt(float(np.einsum("i,i->", update, update, dtype=np.float64)))


def add_noise(update: Flat, deviation: float, rng: Source) -> None:
    """Add independent Gaussian noise of this standard deviation to each element, in place."""
    if deviation:
        update += rng.standard_normal(len(update), np.float32) * np.float32(deviation)


def source(noise_seed: NoiseSeed, *key: int) -> Source:
    """Return the source of noise: determined by ``noise_seed`` and ``key``, or the operating system without a seed."""
    if noise_seed == "system":
        return SystemNoise()
    seeded: Source = np.random.default_rng([each & _WORD for each in key])
    return seeded

"""The Gaussian mechanism (Dwork and Roth 2014, "The Algorithmic Foundations of Differential Privacy", appendix A)."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from chimera.core.parameters import Flat

NoiseSeed = Literal["run", "system"]
"""Where noise comes from: the run's seed, so that it can be had again; or the operating system, so that it cannot."""
TAIL = 12.0
"""Standard deviations that noise never leaves: the probability is below 1e-32 an element."""
_WORD = (1 << 64) - 1
_DOWN = 1 - 2.0**-22  # keeps rounding from taking the norm above the bound


def clip(update: Flat, norm: float) -> float:
    """Scale an update, shape (n,), in place, so that its L2 norm is at most ``norm``; return the norm it had."""
    had = math.sqrt(float(np.einsum("i,i->", update, update, dtype=np.float64)))
    if had > norm:
        update *= np.float32(norm / had * _DOWN)
    return had


def add_noise(update: Flat, deviation: float, rng: np.random.Generator) -> None:
    """Add independent Gaussian noise of this standard deviation to each element, in place."""
    if deviation:
        update += rng.standard_normal(len(update), np.float32) * np.float32(deviation)


def source(noise_seed: NoiseSeed, *key: int) -> np.random.Generator:
    """Return where noise is drawn from: decided by ``key``, or by the operating system alone."""
    return np.random.default_rng([each & _WORD for each in key] if noise_seed == "run" else None)

"""Largest magnitudes and sums of a vector, in one pass."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chimera.codecs.kernels.device.base import magnitudes
from chimera.codecs.kernels.device.bits import pack_signs
from chimera.codecs.kernels.layout import ABSOLUTE, NEGATIVE, SQUARE, TOP, TOTAL
from chimera.core.device import to_host


def abs_max(x: Tensor) -> Any:
    return to_host(_top(x))[0] if len(x) else np.float32(0)


def _top(x: Tensor) -> Tensor:
    """Return the largest magnitude, shape (1,)."""
    return magnitudes(x).amax(0, keepdim=True).view(torch.float32)


def moments(x: Tensor, bounds: Any, backwards: bool, columns: int, signs: Any, table: Any) -> None:
    rows = [_row(x[begin:end], columns) for begin, end in itertools.pairwise(bounds.tolist())]
    to_host(torch.stack(rows), table)
    if signs.size:
        pack_signs(x, signs)


def _row(x: Tensor, columns: int) -> Tensor:
    found = x.new_zeros(5, dtype=torch.float64)
    if columns & TOTAL:
        found[0] = x.sum(dtype=torch.float64)
    if columns & ABSOLUTE:
        found[1] = torch.linalg.vector_norm(x, 1, dtype=torch.float64)
    if columns & SQUARE:
        found[2] = torch.linalg.vector_norm(x, 2, dtype=torch.float64) ** 2
    if columns & TOP:
        found[3] = torch.nan_to_num(_top(x)[0].double(), nan=torch.inf, posinf=torch.inf)
    if columns & NEGATIVE:
        found[4] = torch.count_nonzero(torch.signbit(x))
    return found

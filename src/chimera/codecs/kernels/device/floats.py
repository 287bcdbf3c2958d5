"""Shorter floats, powers of two, and tables of levels."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chimera.codecs.kernels.device.base import magnitudes, pieces, read, write
from chimera.codecs.kernels.device.bits import pack_signs, unpack_signs
from chimera.codecs.kernels.device.hashing import random_words
from chimera.codecs.kernels.device.moments import abs_max

_HALF_MAX, _BFLOAT_MAX = 65504.0, 2.0**128 - 2.0**120


def to_half(x: Tensor, out: NDArray[np.uint16]) -> Any:
    for piece in pieces(len(x)):
        write(x[piece].clamp(-_HALF_MAX, _HALF_MAX).to(torch.float16).view(torch.int16), out[piece])
    return abs_max(x)


def from_half(halves: NDArray[np.uint16], out: Tensor) -> int:
    return _widen(halves, torch.float16, out)


def to_bfloat(x: Tensor, out: NDArray[np.uint16]) -> Any:
    for piece in pieces(len(x)):
        write(x[piece].clamp(-_BFLOAT_MAX, _BFLOAT_MAX).to(torch.bfloat16).view(torch.int16), out[piece])
    return abs_max(x)


def from_bfloat(halves: NDArray[np.uint16], out: Tensor) -> int:
    return _widen(halves, torch.bfloat16, out)


def _widen(halves: NDArray[np.uint16], kind: torch.dtype, out: Tensor) -> int:
    """Write 16-bit floats as float32; return the largest magnitude's bits."""
    own = read(halves, out)
    out.copy_(own.view(kind))
    return int((own & 0x7FFF).amax()) if len(own) else 0


def to_exponents(x: Tensor, first: Any, second: Any, out: NDArray[np.uint8], signs: NDArray[np.uint8]) -> Any:
    for piece in pieces(len(x)):
        words = random_words(piece.start, piece.stop - piece.start, first, second, x)
        write((magnitudes(x[piece]) + (words >> 9) >> 23).clamp(max=254).to(torch.uint8), out[piece])
    pack_signs(x, signs)
    return abs_max(x)


def from_exponents(exponents: NDArray[np.uint8], signs: NDArray[np.uint8], out: Tensor) -> int:
    own = read(exponents, out)
    unpack_signs(signs, 1, -1, out)
    for piece in pieces(len(out)):
        out[piece] *= (own[piece].to(torch.int32) << 23).view(torch.float32)
    return int(own.amax()) if len(own) else 0


def to_table(x: Tensor, norm: Any, table: Any, stochastic: bool, first: Any, second: Any, codes: Tensor) -> None:
    lift, factor = (float(each) for each in inverse(np.float32(norm), np.float32(1)))
    levels = torch.from_numpy(table.copy())  # its elements are scalars, as float32
    for piece in pieces(len(x)):
        a = (x[piece].abs() * lift * factor).clamp(max=1)
        u: Any = torch.asarray(np.float32(0.5))
        if stochastic:
            words = random_words(piece.start, piece.stop - piece.start, first, second, x)
            u = (words >> 9 | 0x3F800000).to(torch.int32).view(torch.float32) - 1
        place = (x[piece] < 0).to(torch.uint8) * len(levels)
        for low, high in itertools.pairwise(levels):
            place += a >= (1 - u) * (high - low) + low
        codes[piece] = place


def from_table(codes: Tensor, values: NDArray[np.float32], out: Tensor) -> None:
    own = read(values, out)
    for piece in pieces(len(out)):
        out[piece] = own[codes[piece].to(torch.int64)]


def inverse(norm: Any, levels: Any) -> tuple[Any, Any]:
    """Return (lift, factor), see `compiled.levels.inverse`, as float32."""
    lift = np.float32(2.0**64) if norm < np.float32(2.0**-60) else np.float32(1)
    m = norm * lift
    return lift, levels / m if m > 0 else np.float32(0)

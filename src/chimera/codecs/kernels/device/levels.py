"""Uniform levels: rounding to the nearest, or at random."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from chimera.codecs.kernels.device.base import bits_of, magnitudes, pieces, read, write
from chimera.codecs.kernels.device.bits import packed, unpacked
from chimera.codecs.kernels.device.hashing import random_words
from chimera.codecs.kernels.layout import LANES, packed_size

# Both sides of a division are tensors: torch may multiply by the reciprocal of a plain number, with another last bit.
_ROUND = 12582912  # 1.5 * 2**23: adding it rounds to the nearest integer, ties to even
_TINY, _LIFT, _DROP = 2.0**-60, 2.0**64, 2.0**-64
_SMALL, _LARGE, _HUGE = 2.0**-80, 2.0**80, 3.4028e38
_FLT_MAX = 3.4028234663852886e38


def quantize(
    x: Tensor, norms: NDArray[Any], block: int, find: bool, euclidean: bool, levels: int, width: int, stochastic: bool,
    first: Any, second: Any, begin: int, codes: Any, out: NDArray[Any],
) -> None:  # fmt: skip
    for piece in pieces(len(x)):
        part = x[piece]
        rows = _rows(part, block)
        which = slice(piece.start // block, piece.start // block + len(rows))
        if find:
            own = _norms(rows, euclidean)
            write(own, norms[which])
        else:
            own = read(norms[which], x)
        lift, factor = (each[:, None] for each in _inverse(own, levels))
        scaled = (rows * lift * factor).reshape(-1)[: len(part)]
        if stochastic:
            words = random_words(begin + piece.start, len(part), first, second, x)
            chosen = _at_random(scaled, words, levels)
        else:
            chosen = bits_of(scaled + (_ROUND + levels)) & ((1 << width) - 1)
        found = packed(chosen, width)
        at = packed_size(piece.start, width)
        write(found, out[at : at + len(found)])


def _at_random(scaled: Tensor, words: Tensor, levels: int) -> Tensor:
    bits = 24 if levels <= 127 else 16
    top = levels << bits
    fixed = (scaled * (1 << bits)).clamp(-top, top).to(torch.int64)
    return (fixed + (words >> (32 - bits)) + top >> bits) & 0xFFFF


def dequantize(
    data: NDArray[Any], norms: NDArray[Any], block: int, levels: int, width: int, codes: Any, out: Tensor
) -> int:
    own, scales, largest = read(data, out), read(norms, out), 0
    for piece in pieces(len(out)):
        part, at = out[piece], packed_size(piece.start, width)
        found = unpacked(own[at : at + packed_size(len(part), width)], len(part), width)
        largest = max(largest, int(found.amax()))
        rows = _rows(found.to(torch.int32) - levels, block)
        which = slice(piece.start // block, piece.start // block + len(rows))
        step, drop = (each[:, None] for each in _step(scales[which], levels))
        part.copy_((rows.to(torch.float32) * step * drop).reshape(-1)[: len(part)])
    return largest


def _rows(x: Tensor, block: int) -> Tensor:
    """Return blocks as rows; the last one is padded with zeros."""
    length = min(block, len(x))
    return torch.nn.functional.pad(x, (0, -len(x) % length)).view(-1, length)


def _inverse(norms: Tensor, levels: int) -> tuple[Tensor, Tensor]:
    lift = torch.where(norms < _TINY, _LIFT, 1.0).to(torch.float32)
    m = norms * lift
    return lift, torch.where(m > 0, torch.full_like(m, levels) / m, 0)


def _step(norms: Tensor, levels: int) -> tuple[Tensor, Tensor]:
    small = norms < _TINY
    step = torch.where(small, norms * _LIFT, norms.clamp(max=_HUGE))
    return step / torch.full_like(step, levels), torch.where(small, _DROP, 1.0).to(torch.float32)


def _norms(rows: Tensor, euclidean: bool) -> Tensor:
    top = magnitudes(rows).amax(1).view(torch.float32)
    if not euclidean:
        return top
    total = _square_sums(rows)
    scale = torch.where(top < 1, _LIFT, _DROP).to(torch.float32)
    norm = _root(_square_sums(rows * scale[:, None])).double() / scale.double()
    found = torch.maximum(norm, top.double()).clamp(max=_FLT_MAX).to(torch.float32)
    found = torch.where((top == 0) | ~(top <= _HUGE), top, found)
    return torch.where((total > _SMALL) & (total < _LARGE), _root(total), found)


def _root(x: Tensor) -> Tensor:
    """Return the square root, rounded as in IEEE 754; torch's float32 root may differ in the last bit on some devices."""
    return x.double().sqrt().to(torch.float32)


def _square_sums(rows: Tensor) -> Tensor:
    """Return the sums of squares, added in the order of all kernels: in lanes, then by halves."""
    squares = torch.nn.functional.pad(rows * rows, (0, -rows.shape[1] % LANES)).view(len(rows), -1, LANES)
    lanes = torch.zeros_like(squares[:, 0])
    for i in range(squares.shape[1]):
        lanes += squares[:, i]
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = lanes[:, :half] + lanes[:, half:]
    return lanes[:, 0]

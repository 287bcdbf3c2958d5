"""Codes of a few bits, packed (see `layout`), and signs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.codecs.kernels.layout import CHUNK, planes
from chimera.codecs.kernels.plain.base import B, F, U


def pack_chunk(codes: NDArray[Any], width: int, out: NDArray[np.uint8]) -> int:
    at = shift = 0
    for plane in planes(width):
        h = -(-codes.size * plane // 8)
        rows = np.zeros((8 // plane, h), B)
        rows.reshape(-1)[: codes.size] = (codes >> shift) & ((1 << plane) - 1)
        rows <<= (np.arange(8 // plane, dtype=B) * B(plane))[:, None]
        np.bitwise_or.reduce(rows, axis=0, out=out[at : at + h])
        at, shift = at + h, shift + plane
    return at


def unpack_chunk(packed: NDArray[np.uint8], width: int, codes: NDArray[Any]) -> int:
    at = shift = 0
    codes[:] = 0
    for plane in planes(width):
        h = -(-codes.size * plane // 8)
        shifts = (np.arange(8 // plane, dtype=B) * B(plane))[:, None]
        rows = (packed[at : at + h] >> shifts) & B((1 << plane) - 1)
        codes |= rows.reshape(-1)[: codes.size].astype(codes.dtype) << shift
        at, shift = at + h, shift + plane
    return at


def pack(codes: NDArray[Any], width: int, out: NDArray[np.uint8]) -> None:
    at = 0
    for low in range(0, codes.size, CHUNK):
        at += pack_chunk(codes[low : low + CHUNK], width, out[at:])


def unpack(packed: NDArray[np.uint8], width: int, codes: NDArray[Any]) -> None:
    at = 0
    for low in range(0, codes.size, CHUNK):
        at += unpack_chunk(packed[at:], width, codes[low : low + CHUNK])


def pack_signs(x: NDArray[np.float32], out: NDArray[np.uint8]) -> None:
    at = 0
    for low in range(0, x.size, CHUNK):
        at += pack_chunk((x[low : low + CHUNK].view(U) >> U(31)).astype(B), 1, out[at:])


def unpack_signs(packed: NDArray[np.uint8], plus: Any, minus: Any, out: NDArray[np.float32]) -> None:
    at, bits = 0, np.empty(CHUNK, B)
    for low in range(0, out.size, CHUNK):
        t = out[low : low + CHUNK]
        at += unpack_chunk(packed[at:], 1, bits[: t.size])
        t[:] = np.where(bits[: t.size] != 0, F(minus), F(plus))

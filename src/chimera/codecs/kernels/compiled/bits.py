"""Codes of a few bits, packed chunk by chunk (see `layout`), and signs."""

from __future__ import annotations

from typing import Any

import numpy as np

from chimera.codecs.kernels.layout import CHUNK
from chimera.core.jit import B, U, njit


@njit
def _pack_ones(t: Any, out: Any) -> None:
    h = out.size
    if t.size == 8 * h:
        for j in range(h):
            low = t[j] | B(t[j + h] << 1) | B(t[j + 2 * h] << 2) | B(t[j + 3 * h] << 3)
            high = B(t[j + 4 * h] << 4) | B(t[j + 5 * h] << 5) | B(t[j + 6 * h] << 6) | B(t[j + 7 * h] << 7)
            out[j] = low | high
    else:
        _pack_tail(t, 1, out)


@njit
def _pack_twos(t: Any, out: Any) -> None:
    h = out.size
    if t.size == 4 * h:
        for j in range(h):
            out[j] = t[j] | B(t[j + h] << 2) | B(t[j + 2 * h] << 4) | B(t[j + 3 * h] << 6)
    else:
        _pack_tail(t, 2, out)


@njit
def _pack_fours(t: Any, out: Any) -> None:
    h = out.size
    if t.size == 2 * h:
        for j in range(h):
            out[j] = t[j] | B(t[j + h] << 4)
    else:
        _pack_tail(t, 4, out)


@njit
def _pack_tail(t: Any, width: Any, out: Any) -> None:
    h = out.size
    out[:] = 0
    for i in range(t.size):
        out[i % h] |= B(t[i] << (i // h * width))


@njit
def _down(codes: Any, shift: Any, mask: Any, out: Any) -> None:
    """Write ``codes >> shift & mask``; shifts by constants become vector instructions."""
    if shift == 0:
        for j in range(codes.size):
            out[j] = B(codes[j]) & mask
    elif shift == 2:
        for j in range(codes.size):
            out[j] = B(codes[j] >> 2) & mask
    elif shift == 4:
        for j in range(codes.size):
            out[j] = B(codes[j] >> 4) & mask
    elif shift == 6:
        for j in range(codes.size):
            out[j] = B(codes[j] >> 6) & mask
    elif shift == 8:
        for j in range(codes.size):
            out[j] = B(codes[j] >> 8) & mask
    else:
        for j in range(codes.size):
            out[j] = B(codes[j] >> shift) & mask


@njit
def _up(part: Any, shift: Any, codes: Any) -> None:
    """Set the bits ``part << shift`` in the codes."""
    if shift == 0:
        for j in range(codes.size):
            codes[j] = part[j]
    elif shift == 2:
        for j in range(codes.size):
            codes[j] |= part[j] << 2
    elif shift == 4:
        for j in range(codes.size):
            codes[j] |= part[j] << 4
    elif shift == 6:
        for j in range(codes.size):
            codes[j] |= part[j] << 6
    elif shift == 8:
        for j in range(codes.size):
            codes[j] |= part[j] << 8
    else:
        for j in range(codes.size):
            codes[j] |= part[j] << shift


@njit
def pack_chunk(codes: Any, width: Any, plane: Any, out: Any) -> Any:
    """Pack the codes of a chunk, plane by plane; return the number of bytes. ``plane`` is scratch memory for the codes."""
    n, at, shift = codes.size, 0, 0
    t = plane[:n]
    while width > 0:
        p = 8 if width >= 8 else (4 if width >= 4 else (2 if width >= 2 else 1))
        nbytes = (n * p + 7) // 8
        part = out[at : at + nbytes]
        _down(codes, shift, B((1 << p) - 1), part if p == 8 else t)
        if p == 4:
            _pack_fours(t, part)
        elif p == 2:
            _pack_twos(t, part)
        elif p == 1:
            _pack_ones(t, part)
        at, shift, width = at + nbytes, shift + p, width - p
    return at


@njit
def unpack_chunk(packed: Any, width: Any, plane: Any, codes: Any) -> Any:
    """Unpack the codes of `pack_chunk`; return the number of bytes read."""
    n, at, shift = codes.size, 0, 0
    if width == 0:
        codes[:] = 0
    while width > 0:
        p = 8 if width >= 8 else (4 if width >= 4 else (2 if width >= 2 else 1))
        h = (n * p + 7) // 8
        part = packed[at : at + h]
        if p == 8:
            _up(part, shift, codes)
        else:
            t = plane[:n]
            if n * p == 8 * h:
                _unpack_full(part, p, t)
            else:
                mask = (1 << p) - 1
                for i in range(n):
                    t[i] = (part[i % h] >> (i // h * p)) & mask
            _up(t, shift, codes)
        at, shift, width = at + h, shift + p, width - p
    return at


@njit
def _unpack_full(part: Any, p: Any, codes: Any) -> None:
    h = part.size
    if p == 4:
        for j in range(h):
            codes[j] = part[j] & B(15)
            codes[j + h] = B(part[j] >> B(4))
    elif p == 2:
        for j in range(h):
            codes[j] = part[j] & B(3)
            codes[j + h] = B(part[j] >> B(2)) & B(3)
            codes[j + 2 * h] = B(part[j] >> B(4)) & B(3)
            codes[j + 3 * h] = B(part[j] >> B(6))
    else:
        for j in range(h):
            codes[j] = part[j] & B(1)
            codes[j + h] = B(part[j] >> B(1)) & B(1)
            codes[j + 2 * h] = B(part[j] >> B(2)) & B(1)
            codes[j + 3 * h] = B(part[j] >> B(3)) & B(1)
            codes[j + 4 * h] = B(part[j] >> B(4)) & B(1)
            codes[j + 5 * h] = B(part[j] >> B(5)) & B(1)
            codes[j + 6 * h] = B(part[j] >> B(6)) & B(1)
            codes[j + 7 * h] = B(part[j] >> B(7))


@njit
def pack(codes: Any, width: Any, out: Any) -> None:
    """Pack unsigned codes of ``width`` bits."""
    plane, at = np.empty(CHUNK, B), 0
    for begin in range(0, codes.size, CHUNK):
        at += pack_chunk(codes[begin : begin + CHUNK], width, plane, out[at:])


@njit
def unpack(packed: Any, width: Any, codes: Any) -> None:
    """Unpack the codes of `pack`."""
    plane, at = np.empty(CHUNK, B), 0
    for begin in range(0, codes.size, CHUNK):
        at += unpack_chunk(packed[at:], width, plane, codes[begin : begin + CHUNK])


@njit
def pack_signs(x: Any, out: Any) -> None:
    """Pack the sign bits; a bit is set if its element is negative."""
    u, at = x.view(U), 0
    for low in range(0, x.size, CHUNK):
        t = u[low : low + CHUNK]
        h = (t.size + 7) // 8
        part = out[at : at + h]
        if t.size == 8 * h:
            for j in range(h):
                a = U(t[j] >> U(31)) | U(U(t[j + h] >> U(31)) << U(1))
                b = U(U(t[j + 2 * h] >> U(31)) << U(2)) | U(U(t[j + 3 * h] >> U(31)) << U(3))
                c = U(U(t[j + 4 * h] >> U(31)) << U(4)) | U(U(t[j + 5 * h] >> U(31)) << U(5))
                d = U(U(t[j + 6 * h] >> U(31)) << U(6)) | U(U(t[j + 7 * h] >> U(31)) << U(7))
                part[j] = B(a | b | c | d)
        else:
            part[:] = 0
            for i in range(t.size):
                part[i % h] |= B((t[i] >> U(31)) << U(i // h))
        at += h


@njit
def unpack_signs(packed: Any, plus: Any, minus: Any, out: Any) -> None:
    """Write ``minus`` for each bit that is set, else ``plus``."""
    at = 0
    for low in range(0, out.size, CHUNK):
        t = out[low : low + CHUNK]
        h = (t.size + 7) // 8
        part = packed[at : at + h]
        for k in range(8):
            bit = B(1 << k)
            piece = t[k * h : (k + 1) * h]
            for j in range(piece.size):
                piece[j] = minus if part[j] & bit else plus
        at += h

"""Codes of a few bits, packed (see `layout`), and signs."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from chimera.codecs.kernels.device.base import bits_of, pieces, read, write
from chimera.codecs.kernels.layout import CHUNK, packed_size, planes


def packed(codes: Tensor, width: int) -> Tensor:
    """Return packed codes: whole chunks, and the rest."""
    whole = len(codes) // CHUNK * CHUNK
    rows = codes[:whole].view(whole // CHUNK, CHUNK), codes[None, whole:]
    return torch.cat([_pack_rows(each, width).reshape(-1) for each in rows])


def unpacked(data: Tensor, size: int, width: int) -> Tensor:
    """Unpack the codes of `packed` as uint8, or as a wider type if they need it."""
    whole = size // CHUNK
    split = packed_size(whole * CHUNK, width)
    rows = _unpack_rows(data[:split].view(whole, -1), CHUNK, width) if whole else data.new_empty(0)
    last = _unpack_rows(data[None, split:], size - whole * CHUNK, width)
    return torch.cat([rows.reshape(-1).to(last.dtype), last.reshape(-1)])


def _pack_rows(codes: Tensor, width: int) -> Tensor:
    """Pack each row separately, shape (rows, n) to (rows, bytes)."""
    size, found, shift = codes.shape[1], [], 0
    for plane in planes(width):
        part = (codes >> shift & ((1 << plane) - 1)).to(torch.uint8)
        length = -(-size * plane // 8)
        part = torch.nn.functional.pad(part, (0, length * (8 // plane) - size))
        total = part[:, :length].clone()
        for i in range(1, 8 // plane):
            total |= part[:, i * length : (i + 1) * length] << i * plane
        found.append(total)
        shift += plane
    return torch.cat(found, 1) if found else codes.new_empty((len(codes), 0), dtype=torch.uint8)


def _unpack_rows(data: Tensor, size: int, width: int) -> Tensor:
    kind = torch.uint8 if width <= 8 else torch.int32 if width <= 16 else torch.int64
    codes = torch.zeros((len(data), size), dtype=kind, device=data.device)
    at = shift = 0
    for plane in planes(width):
        length = -(-size * plane // 8)
        part = data[:, at : at + length]
        for i in range(8 // plane if length else 0):
            place = codes[:, i * length : (i + 1) * length]
            place |= ((part >> i * plane & ((1 << plane) - 1)).to(kind) << shift)[:, : place.shape[1]]
        at, shift = at + length, shift + plane
    return codes


def pack(codes: Tensor, width: int, out: NDArray[Any]) -> None:
    for piece in pieces(len(codes)):
        found = packed(codes[piece], width)
        begin = packed_size(piece.start, width)
        write(found, out[begin : begin + len(found)])


def unpack(data: NDArray[Any], width: int, codes: Tensor) -> None:
    own = read(data, codes)
    for piece in pieces(len(codes)):
        codes[piece] = unpacked(_part(own, piece, width), piece.stop - piece.start, width)


def _part(data: Tensor, piece: slice, width: int) -> Tensor:
    begin = packed_size(piece.start, width)
    return data[begin : begin + packed_size(piece.stop - piece.start, width)]


def pack_signs(x: Tensor, out: NDArray[Any]) -> None:
    for piece in pieces(len(x)):
        found = packed((bits_of(x[piece]) < 0).to(torch.uint8), 1)
        write(found, out[piece.start // 8 : piece.start // 8 + len(found)])


def unpack_signs(data: NDArray[Any], plus: Any, minus: Any, out: Tensor) -> None:
    own = read(data, out)
    for piece in pieces(len(out)):
        signs = unpacked(_part(own, piece, 1), piece.stop - piece.start, 1)
        out[piece].fill_(float(plus)).masked_fill_(signs != 0, float(minus))

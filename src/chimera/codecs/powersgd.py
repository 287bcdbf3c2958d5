"""Matrices as products of thin ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.codecs.codec import CODECS, Codec, State
from chimera.codecs.fields import array, count_arrays, finite, packable, room
from chimera.codecs.kernels import kernels
from chimera.core.device import beside, namespace, put, to_host
from chimera.core.errors import CodecError, ConfigurationError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout

_TINY = 1e-30
_LARGE = 2.0**50  # such matrices are left alone too: their products could overflow


@CODECS.register("powersgd")
class PowerSGD(Codec):
    """Vogels, Karimireddy and Jaggi, 2019: PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization.

    A tensor is taken for a matrix M (its first dimension by the others). One step of subspace iteration from the Q of the
    message before gives P and Q with ``M ~ P Q'``; they travel. Tensors that this does not shorten are left alone. The error
    is fed back, as in the paper, unless ``error_feedback = false``. Here each worker sends its own P and Q, and the server
    averages the products; the paper's form, which reduces P and Q over all workers, belongs to a strategy of all-reduce.

    Parameters
    ----------
    rank : columns of P and Q; more are more exact.
    """

    feedback = True
    on_device = True

    def __init__(self, *, rank: int = 2) -> None:
        if not 1 <= rank <= 1024:
            raise ConfigurationError(f"rank must be from 1 to 1024, not {rank}")
        self._rank = rank
        self._q: dict[str, NDArray[np.float32]] = {}  # by the place of the tensor

    def encode(self, vector: Flat, layout: Layout) -> Encoded:
        """Factorize the matrices."""
        thin, plain, shapes = [], [], []
        for place, (begin, end, rows, columns) in enumerate(_tensors(layout)):
            rank = min(self._rank, rows, columns)
            short = rank * (rows + columns) < rows * columns
            if not short or kernels(vector).abs_max(vector[begin:end]) > _LARGE:
                plain.append(vector[begin:end])
                shapes += [end - begin, 1, 0]
                continue
            matrix = vector[begin:end].reshape(rows, columns)
            p, q = self._factors(str(place), matrix, rank)
            thin += [p.reshape(-1), q.reshape(-1)]
            shapes += [rows, columns, rank]
        arrays = tuple(
            np.concatenate([to_host(part) for part in parts]) if parts else np.zeros(0, np.float32)
            for parts in (thin, plain)
        )
        packable(arrays[0])
        packable(arrays[1])
        return Encoded("powersgd", len(vector), (np.array(shapes, np.uint32), *arrays))

    def decode(self, encoded: Encoded, out: Flat | None = None) -> Flat:
        """Multiply the factors."""
        count_arrays(encoded, 3)
        shapes = _checked_shapes(encoded)
        sizes = [rank * (rows + columns) for rows, columns, rank in shapes]
        thin = finite(encoded, array(encoded, 1, np.float32, sum(sizes)), "factors")
        plain = array(encoded, 2, np.float32, sum(rows * columns for rows, columns, rank in shapes if not rank))
        out = room(encoded, out)
        factors, xp = beside(thin, out), namespace(out)
        begin = at = left = 0
        for (rows, columns, rank), size in zip(shapes, sizes, strict=True):
            piece = out[begin : begin + rows * columns]
            if rank:
                p, q = np.split(thin[at : at + size], [rows * rank])
                if float(np.abs(p).max()) * float(np.abs(q).max()) * rank > np.finfo(np.float32).max:
                    raise CodecError("the factors of a powersgd message overflow")
                p, q = factors[at : at + rows * rank], factors[at + rows * rank : at + size]
                xp.matmul(p.reshape(rows, rank), q.reshape(rank, columns), out=piece.reshape(rows, columns))
            else:
                put(plain[left : left + len(piece)], piece)
                left += len(piece)
            begin, at = begin + len(piece), at + size
        return out

    def state(self) -> State:
        """Return the Qs that the next iteration starts from."""
        return {**super().state(), **{f"q{place}": to_host(q) for place, q in self._q.items()}}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take back what `state` returned."""
        super().restore(state)
        self._q = {name[1:]: np.array(value, np.float32) for name, value in state.items() if name.startswith("q")}

    def _factors(
        self, place: str, matrix: NDArray[np.float32], rank: int
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return P, shape (rows, rank), and Q transposed, shape (rank, columns)."""
        q = self._q.get(place)
        if q is None or q.shape != (rank, matrix.shape[1]):
            rng = np.random.default_rng([self.seed & 0xFFFFFFFF, self.seed >> 32 & 0xFFFFFFFF, int(place)])
            q = rng.standard_normal((rank, matrix.shape[1]), np.float32)
        q, xp = beside(q, matrix), namespace(matrix)
        top = float(abs(q).max())
        with np.errstate(over="ignore", invalid="ignore"):
            p = xp.matmul(matrix, (q / np.float32(top or 1.0)).T)
            packable(to_host(p))
            p = _orthonormal(p)
            q = xp.matmul(p.T, matrix)  # this way round it is ten times faster than the transpose of a large matrix
        packable(to_host(q))
        if float(abs(q).max()) > _TINY:  # from zeros there is no way on
            self._q[place] = q
        return p, q


def _orthonormal(p: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return columns that span the same space; what is zero stays so."""
    xp = namespace(p)
    scale = xp.asarray(xp.amax(abs(p), axis=0), dtype=xp.float64)
    scaled = p / xp.where(scale > 0, scale, 1)
    return xp.asarray(xp.linalg.qr(scaled)[0], dtype=xp.float32)  # type: ignore[no-any-return]


def _tensors(layout: Layout) -> Iterator[tuple[int, int, int, int]]:
    for shape, begin, end in zip(layout.shapes, layout.offsets, layout.offsets[1:], strict=False):
        if begin < end:
            rows = shape[0] if shape else 1
            yield begin, end, rows, math.prod(shape[1:])


def _checked_shapes(encoded: Encoded) -> list[tuple[int, int, int]]:
    numbers = array(encoded, 0, np.uint32)
    if numbers.size % 3:
        raise CodecError("the shapes of a powersgd message are cut off")
    shapes = [(rows, columns, rank) for rows, columns, rank in numbers.reshape(-1, 3).tolist()]
    if sum(rows * columns for rows, columns, _ in shapes) != encoded.size:
        raise CodecError(f"the shapes of a powersgd message do not add up to {encoded.size} elements")
    if any(rank > min(rows, columns) for rows, columns, rank in shapes):
        raise CodecError("a rank in a powersgd message is above that of its matrix")
    return shapes

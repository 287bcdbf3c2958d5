"""One step of subspace iteration: the common part of both forms of PowerSGD, and the form for collectives.

The common part accepts arrays and tensors. Groups reduce arrays only, and so does the form for collectives.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chimera.codecs.codec import State
from chimera.codecs.reduction import Mean, Reduction
from chimera.core.call import empty
from chimera.core.device import namespace
from chimera.core.parameters import Flat, Layout, all_finite

_TINY = 1e-30


class Tensor(NamedTuple):
    """A tensor as a matrix: its first dimension by the others.

    Attributes
    ----------
    place : number of the tensor in the layout.
    begin, end : its bounds in the flat vector.
    rank : number of columns of its P and Q; 0 if they would not be shorter than the tensor, which is then unchanged.
    """

    place: int
    begin: int
    end: int
    rows: int
    columns: int
    rank: int


def tensors(layout: Layout, rank: int) -> Iterator[Tensor]:
    """Yield the tensors that have elements."""
    for place, (shape, begin, end) in enumerate(zip(layout.shapes, layout.offsets, layout.offsets[1:], strict=False)):
        if begin < end:
            rows, columns = shape[0] if shape else 1, math.prod(shape[1:])
            own = min(rank, rows, columns)
            yield Tensor(place, begin, end, rows, columns, own if own * (rows + columns) < rows * columns else 0)


def initial_q(q: NDArray[np.float32] | None, tensor: Tensor, seed: int) -> NDArray[np.float32]:
    """Return the start of an iteration, shape (rank, columns), at most 1: the last Q, or random numbers of the seed."""
    if q is None or q.shape != (tensor.rank, tensor.columns):
        rng = np.random.default_rng([seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF, tensor.place])
        q = rng.standard_normal((tensor.rank, tensor.columns), np.float32)
    return q / np.float32(float(abs(q).max()) or 1.0)


def can_start_from(q: NDArray[np.float32]) -> bool:
    """Return whether another iteration can start from this Q; it cannot start from zeros."""
    return float(abs(q).max()) > _TINY


def orthonormal(p: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return orthonormal columns whose span includes the span of the given columns."""
    xp = namespace(p)
    scale = xp.asarray(xp.amax(abs(p), axis=0), dtype=xp.float64)
    scaled = p / xp.where(scale > 0, scale, 1)
    return xp.asarray(xp.linalg.qr(scaled)[0], dtype=xp.float32)  # type: ignore[no-any-return]


class LowRank(Reduction):
    """Vogels et al., 2019, algorithm 1: the mean of P over all members, made orthonormal, then the mean of Q.

    One collective reduces P of all matrices, together with the tensors that stay unchanged; a second one reduces Q. The Q from
    which the next step starts is shared. Each member computes P and the product itself. Equal linear algebra libraries give
    equal bits.
    """

    def __init__(self, rank: int, seed: int) -> None:
        self._rank, self._seed = rank, seed
        self._q: dict[str, NDArray[np.float32]] = {}  # by the place of the tensor
        self._next: dict[str, NDArray[np.float32]] = {}
        self._layout: Layout | None = None

    def all_reduce(self, vector: Flat, layout: Layout, mean: Mean, left: Flat | None = None) -> Flat:
        """Reduce in two collectives; in one if there is no matrix to shorten."""
        if layout != self._layout:
            self._arrange(layout)
        self._next = {}
        with np.errstate(over="ignore", invalid="ignore"):  # the caller checks the result
            for tensor, p, _ in self._matrices:
                q = initial_q(self._q.get(str(tensor.place)), tensor, self._seed)
                np.matmul(_matrix(vector, tensor), q.T, out=p)
            for tensor, piece in self._plain:
                np.copyto(piece, vector[tensor.begin : tensor.end])
            mean(self._first)
            if not all_finite(self._first):  # all members have the same bits, and all stop here
                vector.fill(np.nan)
                return vector
            bases = [orthonormal(p) for _, p, _ in self._matrices]
            for basis, (tensor, _, q) in zip(bases, self._matrices, strict=True):
                np.matmul(basis.T, _matrix(vector, tensor), out=q)
            if left is not None:
                self._write_residual(vector, bases, left)
            if self._matrices:
                mean(self._second)
            for basis, (tensor, _, q) in zip(bases, self._matrices, strict=True):
                np.matmul(basis, q, out=_matrix(vector, tensor))
                if can_start_from(q):
                    self._next[str(tensor.place)] = q.copy()
        for tensor, piece in self._plain:
            np.copyto(vector[tensor.begin : tensor.end], piece)
        return vector

    def commit(self, participated: bool = True) -> None:  # noqa: ARG002 - Q is shared
        """Keep the Q of this step for the next one."""
        self._q, self._next = {**self._q, **self._next}, {}

    def shared(self) -> State:
        """Return Q of each matrix."""
        return {f"q{place}": q for place, q in self._q.items()}

    def restore_shared(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore Q of another member."""
        self._q = {name[1:]: np.array(q, np.float32) for name, q in state.items()}

    def _write_residual(self, vector: Flat, bases: list[NDArray[np.float32]], left: Flat) -> None:
        """Write each matrix minus its projection, which is what this member's P and Q represent; nothing else is left out."""
        for tensor, _ in self._plain:
            left[tensor.begin : tensor.end] = 0
        for basis, (tensor, _, q) in zip(bases, self._matrices, strict=True):
            rest = _matrix(left, tensor)
            np.matmul(basis, q, out=rest)
            np.subtract(_matrix(vector, tensor), rest, out=rest)

    def _arrange(self, layout: Layout) -> None:
        """Place P of all matrices and the other tensors in one vector, and Q of all matrices in another."""
        found = list(tensors(layout, self._rank))
        short, plain = [t for t in found if t.rank], [t for t in found if not t.rank]
        bounds = np.cumsum([0, *(t.rows * t.rank for t in short), *(t.end - t.begin for t in plain)]).tolist()
        q_bounds = np.cumsum([0, *(t.rank * t.columns for t in short)]).tolist()
        self._first, self._second = empty(bounds[-1]), empty(q_bounds[-1])
        pieces = [self._first[b:e] for b, e in itertools.pairwise(bounds)]
        qs = [self._second[b:e] for b, e in itertools.pairwise(q_bounds)]
        self._matrices = [
            (t, p.reshape(t.rows, t.rank), q.reshape(t.rank, t.columns))
            for t, p, q in zip(short, pieces, qs, strict=False)
        ]
        self._plain = list(zip(plain, pieces[len(short) :], strict=True))
        self._layout = layout


def _matrix(flat: Flat, tensor: Tensor) -> NDArray[np.float32]:
    return flat[tensor.begin : tensor.end].reshape(tensor.rows, tensor.columns)

"""Low-rank approximations of matrices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.codecs.codec import CODECS, Codec, State
from chimera.codecs.fields import array, check_finite, count_arrays, finite, output_for
from chimera.codecs.kernels import kernels
from chimera.codecs.low_rank import LowRank, Tensor, can_start_from, initial_q, orthonormal, tensors
from chimera.core.device import copy_to, namespace, to_device_of, to_host
from chimera.core.errors import CodecError, ConfigurationError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout

_LARGE = 2.0**50  # matrices with such elements are sent unchanged: their products could overflow


@CODECS.register("powersgd")
class PowerSGD(Codec):
    """Vogels, Karimireddy and Jaggi, 2019: PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization.

    A tensor is a matrix M, its first dimension by the others. One step of subspace iteration, from the Q of the last message,
    gives P and Q with ``M ~ P Q'``, which are sent. Tensors that this does not shorten are sent unchanged. Error feedback is
    on, as in the paper, unless ``error_feedback = false``. With an all-reduce strategy, P and Q are reduced over the workers,
    as in the paper. With servers, each worker sends its own P and Q, and the server averages the products.

    Parameters
    ----------
    rank : number of columns of P and Q; default 2. More columns are more exact.
    """

    feedback = True
    on_device = True

    def __init__(self, *, rank: int = 2) -> None:
        if not 1 <= rank <= 1024:
            raise ConfigurationError(f"rank must be from 1 to 1024, not {rank}")
        self._rank = rank
        self._q: dict[str, NDArray[np.float32]] = {}  # by the place of the tensor

    def encode(self, vector: Flat, layout: Layout) -> Encoded:
        """Compute the factors of the matrices."""
        thin, plain, shapes = [], [], []
        for tensor in tensors(layout, self._rank):
            flat = vector[tensor.begin : tensor.end]
            if not tensor.rank or kernels(vector).abs_max(flat) > _LARGE:
                plain.append(flat)
                shapes += [len(flat), 1, 0]
                continue
            p, q = self._factors(flat.reshape(tensor.rows, tensor.columns), tensor)
            thin += [p.reshape(-1), q.reshape(-1)]
            shapes += [tensor.rows, tensor.columns, tensor.rank]
        arrays = tuple(
            np.concatenate([to_host(part) for part in parts]) if parts else np.zeros(0, np.float32)
            for parts in (thin, plain)
        )
        check_finite(arrays[0])
        check_finite(arrays[1])
        return Encoded("powersgd", len(vector), (np.array(shapes, np.uint32), *arrays))

    def decode(self, encoded: Encoded, out: Flat | None = None) -> Flat:
        """Multiply the factors."""
        count_arrays(encoded, 3)
        shapes = _checked_shapes(encoded)
        sizes = [rank * (rows + columns) for rows, columns, rank in shapes]
        thin = finite(encoded, array(encoded, 1, np.float32, sum(sizes)), "factors")
        plain = array(encoded, 2, np.float32, sum(rows * columns for rows, columns, rank in shapes if not rank))
        out = output_for(encoded, out)
        factors, xp = to_device_of(thin, out), namespace(out)
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
                copy_to(plain[left : left + len(piece)], piece)
                left += len(piece)
            begin, at = begin + len(piece), at + size
        return out

    def reduction(self) -> LowRank:
        """Return the all-reduce form of the paper."""
        return LowRank(self._rank, self.seed)

    def state(self) -> State:
        """Return the Q of each matrix, from which the next iteration starts."""
        return {**super().state(), **{f"q{place}": to_host(q) for place, q in self._q.items()}}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore a state that `state` returned."""
        super().restore(state)
        self._q = {name[1:]: np.array(value, np.float32) for name, value in state.items() if name.startswith("q")}

    def _factors(self, matrix: NDArray[np.float32], tensor: Tensor) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return P, shape (rows, rank), and Q transposed, shape (rank, columns)."""
        xp, q = namespace(matrix), to_device_of(initial_q(self._q.get(str(tensor.place)), tensor, self.seed), matrix)
        with np.errstate(over="ignore", invalid="ignore"):
            p = xp.matmul(matrix, q.T)
            check_finite(to_host(p))
            p = orthonormal(p)
            q = xp.matmul(p.T, matrix)  # ten times faster than with the transpose of a large matrix
        check_finite(to_host(q))
        if can_start_from(q):
            self._q[str(tensor.place)] = q
        return p, q


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

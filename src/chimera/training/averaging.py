"""What a server makes of the vectors that workers sent: their mean, whole or by rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from chimera.codecs.rows import nonzero_rows
from chimera.core.errors import ConfigurationError
from chimera.core.parameters import Flat, reduce_in_order
from chimera.core.rows import RowLayout, SparseRows

Averaging: TypeAlias = Literal["all", "touched", "sum"]
"""How vectors become one: their mean; for each row, the mean of the vectors in which it is not all zero; or their sum.

Where workers change a few rows each (word vectors), the mean of all takes most of its update from a row that only one touched.
"""


class Averager:
    """Adds up vectors in the order given, so that the same vectors give the same bits.

    Parameters
    ----------
    rows : where the rows of the vectors lie.
    """

    def __init__(self, rows: RowLayout) -> None:
        self._rows = rows

    def dense(self, vectors: Sequence[Flat], out: Flat, averaging: Averaging = "all") -> Flat:
        """Write what vectors, shape (P,), come to, to ``out``, which is none of them; return it."""
        _check(averaging)
        reduce_in_order(vectors, out, 1 / len(vectors) if averaging == "all" else 1)
        if averaging == "touched" and len(vectors) > 1:
            givers, flags = np.zeros(self._rows.rows, np.uint32), np.empty(self._rows.rows, np.uint8)
            for vector in vectors:
                givers += nonzero_rows(vector, self._rows, flags)
            self._rows.multiply(out, _shares(givers))
        return out

    def sparse(self, parts: Sequence[SparseRows], averaging: Averaging = "all") -> SparseRows:
        """Return the same of rows, each of which its giver has touched: those that any giver has."""
        _check(averaging)
        numbers = parts[0].numbers if len(parts) == 1 else np.unique(np.concatenate([part.numbers for part in parts]))
        layout = self._rows.only(numbers)
        total, givers = np.zeros(layout.size, np.float32), np.zeros(numbers.size, np.uint32)
        with np.errstate(over="ignore", invalid="ignore"):  # whoever asked looks at it
            for part in parts:
                places = np.searchsorted(numbers, part.numbers)
                layout.add(SparseRows(places, part.values), total)
                givers[places] += 1
            if averaging == "all":
                total *= np.float32(1 / len(parts))
            elif averaging == "touched":
                layout.multiply(total, _shares(givers))
        return SparseRows(numbers, total)


def _shares(givers: NDArray[np.uint32]) -> NDArray[np.float32]:
    return np.reciprocal(np.maximum(givers, 1), dtype=np.float32)


def _check(averaging: str) -> None:
    if averaging not in get_args(Averaging):
        raise ConfigurationError(f"averaging is {', '.join(get_args(Averaging))}, not {averaging!r}")

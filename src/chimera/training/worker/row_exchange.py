"""A worker's model by its rows: it pulls those that its next batches need, and pushes what became of them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.codecs.codec import State, rows_of
from chimera.codecs.rows import nonzero_rows, pack_rows
from chimera.core.errors import CodecError, ConfigurationError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat
from chimera.core.rows import Numbers, RowLayout, SparseRows
from chimera.models.model import Batch


def check_rows(model: Any) -> None:
    """Raise `ConfigurationError` if a model cannot say which rows a batch needs."""
    if not (hasattr(model, "rows") and hasattr(model, "row_gradient")):
        raise ConfigurationError(
            f"a {type(model).__name__} does not say which rows a batch needs, so workers cannot pull by rows: "
            'in place of downlink = "rows" take downlink = { name = "delta", codec = "rows" }'
        )


class RowExchange:
    """Stands for `Exchange`, and for the model where vectors are concerned: all vectors here have the wanted rows alone.

    Parameters
    ----------
    model : one that has ``rows`` and ``row_gradient``, see `chimera.models.model.Model`. What was pulled is written into its
        parameters. The rest of them are as they were at some time, and are not read.

    Raises
    ------
    ConfigurationError : it has not.
    """

    def __init__(self, model: Any) -> None:
        check_rows(model)
        self._model, self._layout, self._rows = model, model.layout, model.layout.rows
        self._numbers: Numbers = np.empty(0, np.int64)
        self._only = RowLayout((), ())  # of a vector of the wanted rows
        self._flat = np.empty(0, np.float32)
        self._edges: list[int] = []  # the first row of each shard, and how many there are
        self._shards: list[RowLayout] = []

    def of(self, batch: Batch) -> Numbers:
        """Return the numbers of the rows that a batch needs, in the whole vector."""
        return self._numbered(self._model.rows(batch))

    def ask(self, needs: Sequence[Numbers], shards: int) -> list[NDArray[np.uint32]]:
        """Want the rows of all these numbers from now on; return their numbers in each shard."""
        if len(self._shards) != shards:
            bounds = self._layout.bounds(shards)
            self._edges = [self._rows.nearest(bound) for bound in bounds]
            self._shards = [self._layout.cut(begin, end).rows for begin, end in itertools.pairwise(bounds)]
        self._numbers = needs[0] if len(needs) == 1 else np.unique(np.concatenate(needs))
        self._only = self._rows.only(self._numbers)
        self._flat = np.empty(self._only.size, np.float32)
        return [part.astype(np.uint32) for part in self._parted(self._numbers)]

    def load(self, weights: Sequence[Encoded], flat: Flat) -> None:
        """Unpack the wanted rows, a message a shard, into ``flat``."""
        at = 0
        for message, layout, wanted in zip(weights, self._shards, self._parted(self._numbers), strict=True):
            rows = rows_of(message, layout)
            if rows is None or not np.array_equal(rows.numbers, wanted):
                raise CodecError("the weights that came are not the rows that were asked for by `wanted`")
            flat[at : at + rows.values.size] = rows.values
            at += rows.values.size

    def parameters(self) -> Flat:
        """Return the live vector of the wanted rows."""
        return self._flat

    def gradient(self, batch: Batch) -> tuple[Flat, float]:
        """Return the gradient of the wanted rows at `parameters`, and the mean loss."""
        self._rows.scatter(SparseRows(self._numbers, self._flat), self._model.parameters())
        found, loss = self._model.row_gradient(batch)
        numbers = self._numbered({name: numbers for name, (numbers, _) in found.items()})
        given = [found[name][1] for name in self._layout.names if name in found]
        values = np.concatenate([np.asarray(each, np.float32).reshape(-1) for each in given])
        if np.array_equal(numbers, self._numbers):
            return values, loss
        places = np.searchsorted(self._numbers, numbers)
        if not np.array_equal(self._numbers.take(places, mode="clip"), numbers):
            raise ConfigurationError(
                f"row_gradient of a {type(self._model).__name__} has rows that its rows did not name for this batch"
            )
        return self._only.filled(SparseRows(places, values)), loss

    def packed(self, flat: Flat) -> list[Encoded]:
        """Return those of the wanted rows that are not all zero in ``flat`` as messages, one a shard."""
        kept = np.flatnonzero(nonzero_rows(flat, self._only, np.empty(self._only.rows, np.uint8)))
        numbers, values, at = self._numbers[kept], self._only.gather(flat, kept), 0
        messages = []
        for part, layout in zip(self._parted(numbers), self._shards, strict=True):
            end = at + layout.elements(part)
            messages.append(pack_rows(SparseRows(part, values[at:end]), layout))
            at = end
        return messages

    def states(self) -> list[State]:
        """Return nothing: all that is sent is exact."""
        return []

    def restore(self, states: Sequence[Mapping[str, Any]]) -> None:
        """See `states`."""

    def _parted(self, numbers: Numbers) -> list[Numbers]:
        """Return the numbers that each shard has of these rows."""
        cuts = np.searchsorted(numbers, self._edges).tolist()
        return [
            numbers[low:high] - edge for (low, high), edge in zip(itertools.pairwise(cuts), self._edges, strict=False)
        ]

    def _numbered(self, named: Mapping[str, Numbers]) -> Numbers:
        """Return rows that are named by tensor by their numbers in the whole vector."""
        parts = []
        for name, (first, count) in self._layout.row_ranges.items():
            own = np.asarray(named.get(name, ()), np.int64)
            if own.size and not (own[0] >= 0 and own[-1] < count and (np.diff(own) > 0).all()):
                raise ConfigurationError(f"rows of {name!r} must ascend, from 0 to {count - 1}")
            parts.append(own + first)
        if unknown := [name for name in named if name not in self._layout.row_ranges]:
            raise ConfigurationError(f"there is no tensor {unknown[0]!r} to have rows: {', '.join(self._layout.names)}")
        return np.concatenate(parts)

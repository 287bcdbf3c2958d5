"""Exchange of rows with parameter servers: a worker pulls the rows that its next batches need, and pushes their changes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.codecs.codec import State, rows_of
from chimera.codecs.rows import nonzero_rows, pack_rows
from chimera.core.batch import Batch
from chimera.core.errors import CodecError, ConfigurationError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat
from chimera.core.rows import Numbers, RowLayout, SparseRows


def check_rows(model: Any) -> None:
    """Raise `ConfigurationError` if a model cannot tell which rows a batch needs."""
    if not (hasattr(model, "rows") and hasattr(model, "row_gradient")):
        raise ConfigurationError(
            f"a {type(model).__name__} cannot tell which rows a batch needs, so workers cannot pull rows: "
            'replace downlink = "rows" by downlink = { name = "delta", codec = "rows" }'
        )


class RowExchange:
    """Replaces `Exchange`, and the model as the source of vectors. All vectors here consist of the requested rows.

    Parameters
    ----------
    model : a model with ``rows`` and ``row_gradient``, see `chimera.models.model.Model`. Pulled rows are written into its
        parameters. Its other rows may be outdated, and are not read.

    Raises
    ------
    ConfigurationError : the model lacks these methods.
    """

    def __init__(self, model: Any) -> None:
        check_rows(model)
        self._model, self._layout, self._rows = model, model.layout, model.layout.rows
        self._numbers: Numbers = np.empty(0, np.int64)
        self._only = RowLayout((), ())  # layout of a vector of the requested rows
        self._flat = np.empty(0, np.float32)
        self._edges: list[int] = []  # the first row of each shard, and the number of rows
        self._shards: list[RowLayout] = []

    def of(self, batch: Batch) -> Numbers:
        """Return the indices, in the whole vector, of the rows that a batch needs."""
        return self._numbered(self._model.rows(batch))

    def ask(self, needs: Sequence[Numbers], shards: int) -> list[NDArray[np.uint32]]:
        """Request the rows with these indices from now on; return their indices in each shard."""
        if len(self._shards) != shards:
            bounds = self._layout.bounds(shards)
            self._edges = [self._rows.nearest(bound) for bound in bounds]
            self._shards = [self._layout.cut(begin, end).rows for begin, end in itertools.pairwise(bounds)]
        self._numbers = needs[0] if len(needs) == 1 else np.unique(np.concatenate(needs))
        self._only = self._rows.only(self._numbers)
        self._flat = np.empty(self._only.size, np.float32)
        return [part.astype(np.uint32) for part in self._parted(self._numbers)]

    def load(self, weights: Sequence[Encoded], flat: Flat) -> None:
        """Decode the requested rows, one message for each shard, into ``flat``."""
        at = 0
        for message, layout, wanted in zip(weights, self._shards, self._parted(self._numbers), strict=True):
            rows = rows_of(message, layout)
            if rows is None or not np.array_equal(rows.numbers, wanted):
                raise CodecError("the received weights are not the rows that `wanted` requested")
            flat[at : at + rows.values.size] = rows.values
            at += rows.values.size

    def parameters(self) -> Flat:
        """Return the vector of the requested rows, without a copy."""
        return self._flat

    def gradient(self, batch: Batch) -> tuple[Flat, float]:
        """Return the gradient of the requested rows at `parameters`, and the mean loss."""
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
                f"row_gradient of a {type(self._model).__name__} returned rows that its method rows did not list for this batch"
            )
        return self._only.filled(SparseRows(places, values)), loss

    def packed(self, flat: Flat) -> list[Encoded]:
        """Encode the requested rows that are not all zero in ``flat``, one message for each shard."""
        kept = np.flatnonzero(nonzero_rows(flat, self._only, np.empty(self._only.rows, np.uint8)))
        numbers, values, at = self._numbers[kept], self._only.gather(flat, kept), 0
        messages = []
        for part, layout in zip(self._parted(numbers), self._shards, strict=True):
            end = at + layout.elements(part)
            messages.append(pack_rows(SparseRows(part, values[at:end]), layout))
            at = end
        return messages

    def states(self) -> list[State]:
        """Return an empty list: rows are sent exactly, without state."""
        return []

    def restore(self, states: Sequence[Mapping[str, Any]]) -> None:
        """See `states`."""

    def _parted(self, numbers: Numbers) -> list[Numbers]:
        """Return the indices of these rows in each shard."""
        cuts = np.searchsorted(numbers, self._edges).tolist()
        return [
            numbers[low:high] - edge for (low, high), edge in zip(itertools.pairwise(cuts), self._edges, strict=False)
        ]

    def _numbered(self, named: Mapping[str, Numbers]) -> Numbers:
        """Convert indices by tensor to indices in the whole vector."""
        parts = []
        for name, (first, count) in self._layout.row_ranges.items():
            own = np.asarray(named.get(name, ()), np.int64)
            if own.size and not (own[0] >= 0 and own[-1] < count and (np.diff(own) > 0).all()):
                raise ConfigurationError(f"rows of {name!r} must ascend, from 0 to {count - 1}")
            parts.append(own + first)
        if unknown := [name for name in named if name not in self._layout.row_ranges]:
            raise ConfigurationError(
                f"the model has no tensor {unknown[0]!r}; its tensors: {', '.join(self._layout.names)}"
            )
        return np.concatenate(parts)

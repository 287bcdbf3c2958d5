"""Ranks of low-rank adapters in a flat vector. Rank i of a product B A is column i of B and row i of A."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from chimera.core.errors import ConfigurationError
from chimera.core.parameters import Flat, Layout

# As the library peft names them: A has shape (r, inputs, ...), and B (outputs, r, ...).
_MATRIX = re.compile(r"(?:^|\.)lora_(?:embedding_)?([AB])(?:\.|$)")


def adapter_rank(layout: Layout) -> int:
    """Return the largest rank of the adapters in a layout.

    Raises
    ------
    ConfigurationError : there are no low-rank adapters.
    """
    ranks = [shape[axis] for _, shape, axis in _matrices(layout)]
    if not ranks:
        raise ConfigurationError("ranks are those of low-rank adapters, and the model has none: set [model.lora]")
    return max(ranks)


def rank_factors(layout: Layout, shares: Sequence[float]) -> Flat:
    """Return a vector, shape (P,), by which all elements of rank i are multiplied by ``shares[i]``.

    It is 0 for ranks without a share, and 1 for parameters that belong to no adapter.
    """
    factors = np.ones(layout.size, np.float32)
    for place, shape, axis in _matrices(layout):
        by_rank = np.zeros(shape[axis], np.float32)
        used = shares[: shape[axis]]
        by_rank[: len(used)] = used
        factors[place].reshape(shape)[...] = by_rank.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return factors


def _matrices(layout: Layout) -> Iterator[tuple[slice, tuple[int, ...], int]]:
    """Yield place, shape, and the axis of the ranks of each matrix of an adapter."""
    offsets = layout.offsets
    for i, (name, shape) in enumerate(zip(layout.names, layout.shapes, strict=True)):
        if found := _MATRIX.search(name):
            yield slice(offsets[i], offsets[i + 1]), shape, "AB".index(found[1])

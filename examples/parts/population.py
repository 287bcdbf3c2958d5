"""Data of many clients: points around the centres of ten classes, of which each client knows a few rows of two classes."""

from __future__ import annotations

import numpy as np

from chimera.data.dataset import Dataset
from chimera.data.split import Split


def population(*, clients: int = 1000, rows: int = 4, features: int = 20, seed: int = 0) -> Split:
    """Return ``rows`` training rows for each of ``clients``, in their order, and 2,000 test rows.

    The partition ``contiguous`` with as many workers gives each client its own rows.
    """
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((10, features), np.float32)
    known = rng.integers(10, size=(clients, 2))  # the two classes of each client
    labels = np.take_along_axis(known, rng.integers(2, size=(clients, rows)), axis=1).ravel()

    def part(labels: np.ndarray) -> Dataset:
        inputs = centres[labels] + rng.standard_normal((len(labels), features), np.float32)
        return Dataset(inputs, labels.astype(np.int64), tuple("0123456789"))

    return Split(part(labels), part(rng.integers(10, size=2000)))

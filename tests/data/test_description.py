"""The line that says what was understood of the data of a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from chimera.data.description import described
from chimera.data.iterable import IterableSamples
from chimera.data.samples import SampleDataset
from chimera.data.split import DATASETS, Split

FRAME = pd.DataFrame(
    {"a": np.arange(20.0), "b": np.arange(20.0) % 3, "kind": ["x", "y"] * 10, "churn": ["no", "yes", "yes", "no"] * 5}
)


def test_tables_arrays_and_lazy_samples_are_described_in_one_line() -> None:
    table = Split.of(FRAME, standardize=True, name="churn.csv")
    assert described(table) == (
        "data: churn.csv · 16 train, 4 test · 4 features (1 one-hot column), standardized · 2 classes: no, yes"
    )
    images = Split.of((np.zeros((10, 8, 8)), np.arange(10) / 3))
    assert described(images) == "data: data · 8 train, 2 test · inputs 8 x 8 · 1 value to predict"
    pairs = [(np.zeros(3, np.float32), row % 2) for row in range(10)]

    class Pairs:
        classes = ("a", "b")
        __len__, __getitem__ = (lambda _: len(pairs)), (lambda _, row: pairs[row])

    assert described(Split.of(SampleDataset(Pairs(), name="mine"))) == (
        "data: mine · 8 train, 2 test · samples are read by the workers · 2 classes: a, b"
    )
    digits = described(DATASETS.create("digits"))
    assert digits.endswith("10 classes: 0, 1, 2, 3, 4, ...")
    assert "\n" not in digits


def test_samples_that_a_stream_lacks_are_not_counted() -> None:
    def pairs() -> Iterator[Any]:
        yield from ((np.zeros(3, np.float32), row % 2) for row in range(10))

    declared = Split(*(IterableSamples(pairs, samples, name="mine") for samples in (40, 5)))
    assert described(declared).startswith("data: mine · 40 declared train, 5 declared test · samples are read")
    assert declared.train.largest_target() == 1  # it reads the whole pass
    assert described(declared).startswith("data: mine · 10 (of 40 declared) train, 5 declared test ·")
    assert list(declared.test.pieces(2))
    counted = Split.of((pairs, declared.test))
    assert described(counted).startswith("data: pairs · 10 train, 5 test ·")

"""Parquet files: the same data as the frame they were written from, columns, and files that cannot be read."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from chimera.core.errors import DataError
from chimera.data.dataset import Dataset
from chimera.data.split import DATASETS, Split

RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(RNG.standard_normal((40, 2)), columns=["a", "b"]).assign(
    kind=RNG.choice(["x", "y", "z"], 40), label=RNG.choice(["no", "yes"], 40)
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "table.parquet"
    FRAME.to_parquet(path, row_group_size=7)
    return path


def test_a_file_has_the_data_of_its_frame(file: Path) -> None:
    assert Dataset.of(file).fingerprint() == Dataset.of(FRAME).fingerprint()
    named = DATASETS.create("parquet", {"path": str(file), "standardize": False})
    assert named.train.fingerprint() == Split.of(FRAME).train.fingerprint()
    assert named.train.features == ("a", "b", "kind=x", "kind=y", "kind=z")


def test_columns_select_and_a_second_file_is_the_test_part(file: Path, tmp_path: Path) -> None:
    FRAME[:10].to_parquet(tmp_path / "test.parquet")
    options = {
        "path": str(file),
        "test_path": str(tmp_path / "test.parquet"),
        "columns": ["b", "label"],
        "target": "label",
    }
    split = DATASETS.create("parquet", options)
    assert split.train.features == ("b",)
    assert (len(split.train), len(split.test)) == (40, 10)


def test_a_pair_of_frames_is_a_train_and_a_test_part() -> None:
    split = Split.of((FRAME[:30], FRAME[30:]))
    assert (len(split.train), len(split.test)) == (30, 10)
    assert split.test.features == split.train.features


def test_a_file_that_cannot_be_read_gives_a_one_line_error(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="has no column 'c'; its columns: a, b, kind, label"):
        DATASETS.create("parquet", {"path": str(file), "columns": ["c"]})
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": 100}.__getitem__)
    with pytest.raises(DataError, match="more than half of this machine's memory: select columns"):
        Dataset.of(file)
    monkeypatch.undo()
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(DataError, match="cannot be read as a Parquet file") as caught:
        Dataset.of(file)
    assert "\n" not in str(caught.value)

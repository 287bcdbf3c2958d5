"""Parquet files: the same data as the frame they were written from, columns, and files that cannot be read."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import chimera
from chimera.core.errors import DataError
from chimera.data.dataset import Dataset
from chimera.data.description import described
from chimera.data.readers import parquet, parquet_rows
from chimera.data.split import DATASETS, Split
from chimera.training.artifacts.signature import Signature

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


ROWS = 400
WIDE = pd.DataFrame(RNG.normal(100, 30, (ROWS, 3)), columns=["a", "b", "c"]).assign(
    kind=RNG.choice(["x", "y", "z"], ROWS),
    size=pd.Categorical(RNG.choice(["low", "high"], ROWS), categories=["low", "middle", "high"]),
    flag=RNG.random(ROWS) > 0.5,
    city=RNG.integers(0, 9, ROWS),
    label=RNG.choice(["no", "yes"], ROWS),
)
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "limited, another seed": {"limit": 100, "test_fraction": 0.5, "seed": 3},
    "raw": {"standardize": False},
    "a regression": {"target": "a", "scale_target": True},
    "some columns": {"columns": ["a", "kind", "label"]},
    "numbers as categories": {"one_hot": ["city"], "drop": ["b"]},
    "several targets": {"target": ["a", "b"]},
    "integers as labels": {"target": "city"},
}
LONG = ("limited, another seed", "raw", "some columns", "several targets")


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    path = tmp_path / "wide.parquet"
    WIDE.to_parquet(path, row_group_size=37)
    return path


@pytest.mark.parametrize(
    "options",
    [pytest.param(found, id=name, marks=[pytest.mark.long] * (name in LONG)) for name, found in OPTIONS.items()],
)
def test_rows_read_lazily_have_the_numbers_of_the_table_in_memory(
    wide: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_rows, "CACHE_BYTES", 5000)  # a few row groups
    whole, lazy = (DATASETS.create("parquet", {"path": str(wide), "lazy": lazy, **options}) for lazy in (False, True))
    assert Signature.of(lazy) == Signature.of(whole)
    for name in ("train", "test"):
        ours, theirs = getattr(lazy, name), getattr(whole, name)
        for what in ("features", "classes", "name", "input_shape", "input_type", "outputs", "task"):
            assert getattr(ours, what) == getattr(theirs, what)
        rows = RNG.permutation(len(theirs))
        for found, wanted in zip(pickle.loads(pickle.dumps(ours)).take(rows), theirs.take(rows), strict=True):
            assert found.dtype == wanted.dtype
            np.testing.assert_array_equal(found, wanted)
        for found, wanted in zip(next(ours.whole().pieces(ROWS)), theirs.whole(), strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_a_second_file_has_the_columns_and_classes_of_the_train_part(wide: Path, tmp_path: Path) -> None:
    odd = WIDE[:30].assign(kind="w", label="yes")
    odd.to_parquet(tmp_path / "test.parquet", row_group_size=7)
    options = {"path": str(wide), "test_path": str(tmp_path / "test.parquet")}
    whole, lazy = (DATASETS.create("parquet", {**options, "lazy": lazy}) for lazy in (False, True))
    for found, wanted in zip(lazy.test.take(np.arange(30)), whole.test.take(np.arange(30)), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_a_file_larger_than_memory_trains_by_name_and_by_path(
    wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained(data: Any, name: str) -> Any:
        options: dict[str, Any] = {"engine": "simulated", "rounds": 4, "batch_size": 8, "out": tmp_path / name}
        return chimera.train({"name": "mlp", "hidden": [4]}, data, **options).trained.parameters().copy()

    in_memory = trained({"name": "parquet", "path": str(wide)}, "memory")
    monkeypatch.setattr(parquet, "memory_bytes", lambda: 20_000)
    for split in (DATASETS.create("parquet", {"path": str(wide)}), Split.of(wide), Split.of((wide, wide))):
        assert "rows are read by the workers" in described(split)
    assert np.array_equal(trained(wide, "lazy"), in_memory)


def test_a_process_keeps_a_bounded_part_of_the_rows(wide: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_rows, "CACHE_BYTES", 8000)
    split = DATASETS.create("parquet", {"path": str(wide), "lazy": True})
    source, blocks = split.train.source, split.train.grouping
    decoded = []
    real = parquet.RowGroups.frame
    monkeypatch.setattr(parquet.RowGroups, "frame", lambda *given: decoded.append(given[1]) or real(*given))
    for step in range(len(split.train) // 4):
        split.train.take(blocks.batch((0,), 4 * step, 4))
        assert sum(rows.nbytes for rows in source._decoded.values()) <= 8000
    assert len(decoded) <= len(source.bounds) - 1  # in an epoch, each row group is decoded once
    in_any_order = RNG.permutation(len(split.train))
    before = len(decoded)
    for step in range(20):
        split.train.take(in_any_order[4 * step : 4 * step + 4])
    assert len(decoded) - before > 30  # what the order saves


@pytest.mark.long
def test_reading_processes_read_the_same_rows(wide: Path, tmp_path: Path) -> None:
    data = {"name": "parquet", "path": str(wide), "lazy": True}
    options: dict[str, Any] = {"rounds": 4, "batch_size": 8, "workers": 1, "engine": "local"}
    runs = [
        chimera.train({"name": "mlp", "hidden": [4]}, data, loader={"workers": n}, out=tmp_path / str(n), **options)
        for n in (0, 1)
    ]
    assert np.array_equal(*(run.trained.parameters() for run in runs))


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"a": [np.nan]}, {}, r"row group 3 from row 111: the column 'a' lacks 1 of 37 values"),
        ({"a": [np.inf]}, {}, r"row group 3 from row 111: the inputs are not all finite"),
        ({}, {"drop": ["z"]}, "no column 'z'"),
        ({"kind": [f"text {row}" for row in range(ROWS)]}, {}, "'kind' holds .* different texts, more than 50"),
    ],
)
def test_mistakes_in_rows_name_their_row_group(
    tmp_path: Path, change: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    frame = WIDE.copy()
    for column, values in change.items():
        frame.loc[frame.index[115 : 115 + len(values)] if len(values) == 1 else frame.index, column] = values
    frame.to_parquet(tmp_path / "t.parquet", row_group_size=37)
    with pytest.raises(DataError, match=message):
        DATASETS.create("parquet", {"path": str(tmp_path / "t.parquet"), "lazy": True, **options})


def test_a_file_that_changes_is_noticed_by_the_next_process(wide: Path) -> None:
    data = DATASETS.create("parquet", {"path": str(wide), "lazy": True}).train
    sent = pickle.dumps(data)
    WIDE[:50].to_parquet(wide, row_group_size=37)
    with pytest.raises(DataError, match="has 50 rows, and had 400: it was changed"):
        pickle.loads(sent).take(np.arange(9))


def test_a_row_group_that_does_not_fit_in_memory_is_refused(wide: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "memory_bytes", lambda: 2000)
    with pytest.raises(
        DataError, match="more than a quarter of this machine's memory: write the file with smaller row"
    ):
        DATASETS.create("parquet", {"path": str(wide)})


@pytest.mark.parametrize("lazy", [False, True])
def test_the_size_of_rows_is_not_that_of_their_encoding(
    lazy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of few bytes can have any number of equal values."""
    rows = 100_000
    path = tmp_path / "equal.parquet"
    pd.DataFrame({"a": np.zeros(rows), "b": np.zeros(rows, np.int32), "y": np.zeros(rows, bool)}).to_parquet(path)
    assert path.stat().st_size < rows // 10
    assert parquet.RowGroups(path).bytes == [rows * (8 + 4 + 1)]
    monkeypatch.setattr(parquet, "memory_bytes", lambda: rows * 13)
    with pytest.raises(DataError, match="memory"):
        parquet_rows.ParquetRows(parquet.RowGroups(path)) if lazy else parquet.read_parquet(path)


@pytest.mark.parametrize("labels", ["shift", lambda row: row["shift"]], ids=["column", "function"])
def test_lazy_rows_have_the_labels_and_groups_of_those_in_memory(tmp_path: Path, labels: Any) -> None:
    rng = np.random.default_rng(4)
    columns = {
        "shift": rng.choice(["day", "night"], 60),
        "ward": rng.choice(["a", "b", "c"], 60),
        "age": rng.standard_normal(60),
        "stay": rng.standard_normal(60),
    }
    path = tmp_path / "visits.parquet"
    pd.DataFrame(columns).to_parquet(path, row_group_size=7)
    options = {"path": str(path), "target": "stay", "labels": labels, "groups": "ward"}
    memory, lazy = (DATASETS.create("parquet", {**options, "lazy": lazy}).train for lazy in (False, True))
    assert lazy.features == memory.features == ("shift=day", "shift=night", "age")
    for ours, theirs in (
        (lazy.partition_groups, memory.partition_groups),
        (lazy.labels.take(lazy.rows), memory.labels),
    ):
        assert np.array_equal(ours.indices, theirs.indices)
        assert (ours.names, ours.dropped) == (theirs.names, theirs.dropped)
    assert np.array_equal(lazy.partition_labels, memory.partition_labels)
    assert lazy.classes is memory.classes is None

"""Labels that partitions see instead of the target, and groups, of tables, arrays and lazily read data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from chimera.core.errors import ConfigurationError, DataError
from chimera.data.assignment import orders
from chimera.data.dataset import Dataset
from chimera.data.description import described
from chimera.data.partition import ByGroup, ByLabel
from chimera.data.samples import SampleDataset
from chimera.data.split import DATASETS, Split

ROWS = 60
FRAME = pd.DataFrame(
    {
        "x": np.arange(ROWS) / 7,
        "band": ["low", "mid", "high"] * (ROWS // 3),
        "hospital": ["north", "south", "east", "west", "far"] * (ROWS // 5),
        "y": np.arange(ROWS) ** 1.5,
    }
)
CASES = ["csv", "parquet", "frame"]


def read(kind: str, folder: Path, **options: Any) -> Split:
    """Return the split of the same table from a file or a frame."""
    if kind == "frame":
        return Split.of(FRAME, standardize=True, **options)
    path = folder / f"table.{kind}"
    if kind == "parquet":
        pytest.importorskip("pyarrow")
        FRAME.to_parquet(path)
    else:
        FRAME.to_csv(path, index=False)
    return DATASETS.create(kind, {"path": str(path), **options})


def values(labels: Any) -> list[str]:
    return [labels.names[index] for index in labels.indices]


@pytest.mark.parametrize("kind", CASES)
def test_a_regression_is_partitioned_by_the_labels_of_a_column(kind: str, tmp_path: Path) -> None:
    train = read(kind, tmp_path, labels="band", drop=["hospital"]).train
    assert isinstance(train, Dataset)
    assert train.task == "regression"
    assert train.features == ("x", "band=high", "band=low", "band=mid")
    parts = [order.own() for order in orders(ByLabel(shards_per_worker=1), train, 3, 4, seed=0)]
    assert [len({values(train.labels)[row] for row in part}) for part in parts] == [1, 1, 1]
    assert [np.argmax(train.inputs[0, 1:])] == [["high", "low", "mid"].index(values(train.labels)[0])]


@pytest.mark.parametrize("kind", CASES)
def test_the_column_of_groups_is_no_input_and_each_group_stays_whole(kind: str, tmp_path: Path) -> None:
    split = read(kind, tmp_path, groups="hospital", labels="band", drop=["band"])
    train: Any = split.train
    assert train.features == ("x",)
    assert "3 labels from band (not an input) · 5 groups from hospital (not an input)" in described(split)
    found = [set(np.array(values(train.groups))[o.own()]) for o in orders(ByGroup(), train, 2, 4, seed=0)]
    assert found[0] | found[1] == set(FRAME["hospital"])
    assert not found[0] & found[1]
    assert np.bincount(train.labels.indices).tolist() == [16, 16, 16]  # the split has the same share of each label


def test_a_frame_of_inputs_has_columns_of_labels_and_groups() -> None:
    inputs = FRAME.drop(columns="y")
    train: Any = Split.of((inputs, FRAME["y"]), groups="hospital", labels="band", drop=["band"]).train
    assert train.features == ("x",)
    assert (train.groups.count, train.labels.count) == (5, 3)


def test_the_target_is_the_last_column_that_is_not_the_groups(tmp_path: Path) -> None:
    moved = FRAME[["x", "y", "hospital"]]
    moved.to_csv(tmp_path / "moved.csv", index=False)
    for split in (
        Split.of(moved, groups="hospital"),
        DATASETS.create("csv", {"path": str(tmp_path / "moved.csv"), "groups": "hospital"}),
    ):
        assert split.train.features == ("x",)
        assert split.train.task == "regression"


def test_groups_that_are_the_target_remain_the_target() -> None:
    train: Any = Split.of(FRAME, target="hospital", groups="hospital").train
    assert train.classes == train.groups.names
    assert np.array_equal(train.targets, train.groups.indices)


def test_labels_from_a_function_of_a_row_and_of_a_sample(tmp_path: Path) -> None:
    module = tmp_path / "mine_labels.py"
    module.write_text("def late(row):\n    return row['y'] > 200\n", encoding="utf-8")
    train: Any = read("csv", tmp_path, labels=f"{module}:late").train
    assert set(train.labels.names) == {"False", "True"}
    assert train.labels.source == "late"
    pairs: Any = Split.of(
        (np.zeros((20, 1)), np.arange(20) / 7), labels=lambda pair: pair[1] > 1, groups=np.arange(20) % 4
    )
    assert np.array_equal(pairs.train.labels.indices == 1, pairs.train.targets > 1)
    assert pairs.train.groups.count == 4


def test_a_test_file_needs_no_column_of_groups(tmp_path: Path) -> None:
    FRAME.to_csv(tmp_path / "train.csv", index=False)
    FRAME.drop(columns="hospital").to_csv(tmp_path / "test.csv", index=False)
    options = {"path": str(tmp_path / "train.csv"), "test_path": str(tmp_path / "test.csv"), "groups": "hospital"}
    split = DATASETS.create("csv", options)
    assert split.train.features == split.test.features
    assert (split.train.groups.count, split.test.groups) == (5, None)


class Writers:
    """Twenty samples of three classes by four writers."""

    column_names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return 20

    def __getitem__(self, row: int) -> tuple[Any, int]:
        return np.full(2, row, np.float32), row % 3


class Table(Writers):
    column_names = ["writer", "x"]  # noqa: RUF012 - as data sets of Hugging Face have it

    def __getitem__(self, row: Any) -> Any:
        return ["abcd"[i % 4] for i in range(20)] if row == "writer" else super().__getitem__(row)


@pytest.mark.parametrize(
    ("source", "groups"),
    [
        (Table(), "writer"),
        (Writers(), ["abcd"[i % 4] for i in range(20)]),
        (Writers(), lambda sample: "abcd"[int(sample[0][0]) % 4]),
    ],
    ids=["column", "array", "function"],
)
def test_samples_have_groups_from_a_column_an_array_or_a_function(source: Any, groups: Any) -> None:
    train = Split.of(SampleDataset(source, groups=groups)).train
    assert isinstance(train, SampleDataset)
    found = orders(ByGroup(one_per_worker=True), train, 4, 2, seed=0)
    assert [{int(row) % 4 for row in train.rows[order.own()]} for order in found] == [{0}, {1}, {2}, {3}]


def test_labels_that_are_not_the_targets_do_not_change_the_classes() -> None:
    shades = SampleDataset(Writers(), labels=np.arange(20) % 7)
    assert (shades.outputs, shades.task, shades.largest_target()) == (3, "classification", 2)
    assert np.array_equal(shades.partition_labels, np.arange(20) % 7)
    assert shades.classes is None
    own = SampleDataset(Writers(), labels=np.arange(20) % 3)
    assert own.classes == ("0", "1", "2")


def test_a_hub_data_set_without_the_column_of_its_groups(tmp_path: Path) -> None:
    datasets: Any = pytest.importorskip("datasets")
    columns = {"x": [float(i) for i in range(20)], "label": [i % 2 for i in range(20)], "site": ["a", "b"] * 10}
    datasets.Dataset.from_dict(columns).save_to_disk(tmp_path / "rows")
    split = DATASETS.create("huggingface", {"path": str(tmp_path / "rows"), "groups": "site"})
    assert split.train.groups.names == ("a", "b")
    assert set(split.train.take(np.arange(3))) == {"x", "label"}
    assert "2 groups from site (not an input)" in described(split)


def test_image_files_have_groups_by_their_paths(tmp_path: Path) -> None:
    images = pytest.importorskip("PIL.Image")
    for kind in ("cat", "dog"):
        (tmp_path / kind).mkdir()
        for number in range(6):
            images.new("RGB", (2, 2)).save(tmp_path / kind / f"writer{number % 3}_{number}.png")
    split = DATASETS.create("image-folder", {"path": str(tmp_path), "groups": lambda path: path.split("/")[1][:7]})
    assert split.train.groups.names == ("writer0", "writer1", "writer2")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Split.of(FRAME, groups="clinic"),
            "has no column 'clinic' for its groups; its columns: x, band, hospital, y",
        ),
        (lambda: Dataset.of((np.zeros((4, 1)), np.arange(4)), groups=[1, 2]), "4 samples but 2 groups"),
        (
            lambda: Dataset.of((np.zeros((4, 1)), np.arange(4)), labels=np.zeros((4, 2), int)),
            r"labels have shape \(4, 2\)",
        ),
        (lambda: Dataset.of((np.zeros((2, 1)), np.arange(2)), labels=[1.0, np.nan]), "some of the labels are NaN"),
        (lambda: SampleDataset(Writers(), groups="writer"), "has no column 'writer' for its groups"),
        (
            lambda: orders(ByGroup(), Dataset.of((np.zeros((4, 1)), np.arange(4))), 2, 1, 0),
            "'data' has no groups: set groups to a column",
        ),
    ],
)
def test_mistakes_are_named_in_one_line(make: Any, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, ConfigurationError)

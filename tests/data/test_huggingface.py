"""Data sets of the library datasets, from folders: columns, parts, transforms, mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chimera.core.errors import ConfigurationError, DataError
from chimera.data.iterable import IterableSamples
from chimera.data.samples import SampleDataset
from chimera.data.split import DATASETS
from chimera.data.stream_provider import StreamData
from chimera.training.experiment.resolve import mapping_as_data, split_of

datasets: Any = pytest.importorskip("datasets")


@pytest.fixture
def rows() -> Any:
    kinds = {"x": datasets.Sequence(datasets.Value("float32")), "label": datasets.ClassLabel(names=["no", "yes"])}
    features = datasets.Features({**kinds, "text": datasets.Value("string")})
    columns = {
        "x": [[float(row), 1.0] for row in range(20)],
        "label": [row % 2 for row in range(20)],
        "text": ["a"] * 20,
    }
    return datasets.Dataset.from_dict(columns, features=features)


def create(path: Path, **options: Any) -> Any:
    return DATASETS.create("huggingface", {"path": str(path), **options})


def test_a_folder_is_split_and_keeps_its_labels_and_classes(rows: Any, tmp_path: Path) -> None:
    rows.save_to_disk(tmp_path / "rows")
    split = create(tmp_path / "rows", columns=["x", "label"], rename={"x": "inputs"})
    assert (len(split.train), len(split.test), split.train.classes) == (16, 4, ("no", "yes"))
    assert np.bincount(split.test.targets).tolist() == [2, 2]
    batch = split.train.take(np.array([1, 3]))
    assert set(batch) == {"inputs", "label"}
    assert batch["inputs"].shape == (2, 2)


def test_parts_and_a_transform(rows: Any, tmp_path: Path) -> None:
    parts = datasets.DatasetDict({"train": rows, "validation": rows.select(range(4))})
    parts.save_to_disk(tmp_path / "parts")
    split = create(tmp_path / "parts", columns=["x", "label"], transform=lambda row: (row["x"] * 2, row["label"]))
    assert (len(split.train), len(split.test)) == (20, 4)
    inputs, labels = split.test.take(np.arange(4))
    assert inputs[:, 0].tolist() == [0.0, 2.0, 4.0, 6.0]
    assert labels.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": ["z"]}, "has no column 'z'; its columns: x, label, text"),
        ({"train": "training"}, "has no part 'training'; its parts: train"),
    ],
)
def test_mistakes_get_a_clear_message(rows: Any, tmp_path: Path, options: Any, message: str) -> None:
    datasets.DatasetDict({"train": rows}).save_to_disk(tmp_path / "rows")
    with pytest.raises(ConfigurationError, match=message):
        create(tmp_path / "rows", **options)


def test_a_data_set_that_cannot_be_read_gives_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigurationError, match="cannot be read") as caught:
        create(tmp_path / "empty")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_stream_continues_from_its_state_unless_it_has_a_shuffle_buffer(
    rows: Any, workers: int, shuffled: bool
) -> None:
    stream = rows.select_columns(["x", "label"]).to_iterable_dataset(num_shards=4).with_format("torch")
    if shuffled:
        stream = stream.shuffle(seed=1, buffer_size=5)
    whole, before, after = (IterableSamples(stream, 20) for _ in range(3))
    orders = StreamData(whole, 3).orders(workers)
    for step in range(4):
        for rank, order in enumerate(orders):
            before.take(order.batch(step), (0, rank, step))
    places = [before.place((0, rank)) for rank in range(workers)]
    assert all(places) != shuffled
    for rank, place in enumerate(places):
        if place:
            after.go_to((0, rank), place)
    for step in range(10):
        for rank, order in enumerate(orders):
            expected = whole.take(order.batch(step), (0, rank, step))
            if step >= 4:
                found = after.take(order.batch(step), (0, rank, step))
                assert found["x"].tolist() == expected["x"].tolist()
                assert found["label"].tolist() == expected["label"].tolist()


@pytest.mark.parametrize("form", [None, "torch", "numpy"])
def test_a_data_set_given_directly_trains_alike_in_each_format(rows: Any, form: str | None) -> None:
    data = SampleDataset(rows.select_columns(["x", "label"]).with_format(form))
    batch = data.take(np.array([3, 5]))
    assert np.asarray(batch["x"]).tolist() == [[3.0, 1.0], [5.0, 1.0]]
    assert np.asarray(batch["label"]).tolist() == [1, 1]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([[1, 2], [3], [4, 5]], r"'x' is of shape \(2,\) in sample 0 and of shape \(1,\) in sample 1; give a collate"),
        ([[[1], [2, 3]], [[3]], [[4]]], "'x' is a list of length 2 in sample 0 and of shape .* in sample 1"),
        ([1.0, None, 2.0], "'x' is a value in sample 0 and None in sample 1"),
        ([None, None, None], "'x' is None in sample 0"),
    ],
)
def test_a_column_that_cannot_be_a_batch_is_named(column: Any, message: str) -> None:
    data = SampleDataset(datasets.Dataset.from_dict({"x": column, "label": [0, 1, 0]}), name="mine")
    with pytest.raises(DataError, match=message) as caught:
        data.take(np.arange(3))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("test", ["test", "validation", None])
def test_a_mapping_of_parts_is_a_train_and_a_test_part(test: str | None, rows: Any) -> None:
    parts = {"train": rows, "unsupervised": rows} | ({} if test is None else {test: rows})
    for given in (datasets.DatasetDict(parts), parts):
        split = split_of(mapping_as_data(given), 0)
        assert len(split.train) == (len(rows) if test else len(rows) - round(len(rows) / 5))
        assert len(split.train) + len(split.test) == len(rows) * (1 if test is None else 2)

"""Arrays in other nestings than (inputs, targets), folders by path, and iterable data sets of unknown length."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import chimera
from chimera.core.errors import ConfigurationError, DataError
from chimera.data import iterable
from chimera.data.iterable import IterableSamples
from chimera.data.nested_arrays import is_nested
from chimera.data.split import Split

A, B = np.arange(40.0).reshape(20, 2), np.arange(60, dtype=np.float32).reshape(20, 3)
Y = np.arange(20) % 2
OPTIMIZER = {"name": "adam", "lr": 0.1}


@pytest.mark.parametrize(
    "source",
    [
        ((A, B), Y),
        ([A, B], Y),
        ({"a": A, "b": B}, Y),
        {"a": A, "b": torch.from_numpy(B), "labels": Y},
        UserDict({"a": A, "b": B, "labels": Y}),  # such as the BatchEncoding of a tokenizer
        (UserDict({"a": A, "b": B}), Y),
    ],
    ids=str,
)
def test_rows_of_all_arrays_are_read_together(source: Any) -> None:
    split = Split.of(source)
    assert (len(split.train), len(split.test)) == (16, 4)
    assert sorted(split.train.targets.tolist()) == [0] * 8 + [1] * 8  # stratified
    batch: Any = split.train.take(np.array([3, 0]))
    first, second = (
        (batch["a"], batch["b"])
        if isinstance(batch, Mapping)
        else (batch[0].values() if isinstance(batch[0], Mapping) else batch[0])
    )
    assert first.dtype == second.dtype == np.float32
    np.testing.assert_array_equal(second[:, 0] * 2, first[:, 0] * 3)


@pytest.mark.parametrize("kind", [np.float32, np.int64])
@pytest.mark.parametrize("as_data_set", [False, True])
def test_targets_may_be_images(kind: Any, as_data_set: bool, tmp_path: Path) -> None:
    """Both were refused, also as the `TensorDataset` of real masks."""
    images = np.random.default_rng(0).random((20, 1, 4, 4), dtype=np.float32)
    masks = (images > 0.5).astype(kind) if kind is np.float32 else (images[:, 0] > 0.5).astype(kind)
    data: Any = (images, masks)
    if as_data_set:
        data = torch.utils.data.TensorDataset(torch.from_numpy(images), torch.from_numpy(masks))
    torch.manual_seed(0)
    module = torch.nn.Conv2d(1, 1 if kind is np.float32 else 2, 1)
    model = chimera.TorchModel(module, loss="bce-with-logits" if kind is np.float32 else "cross-entropy")
    options: dict[str, Any] = {"engine": "simulated", "workers": 2, "batch_size": 10, "progress": False}
    run = chimera.train(model, (data, data), rounds=30, out=str(tmp_path / "run"), optimizer=OPTIMIZER, **options)
    with torch.no_grad():
        outputs = module(torch.from_numpy(images))
    assert run.metrics["loss"] == pytest.approx(float(model.loss(outputs, torch.from_numpy(masks))), abs=1e-6)
    assert run.metrics["loss"] < 0.55


def test_pairs_of_nestings_are_train_and_test() -> None:
    split = Split.of(({"a": A, "labels": Y}, {"a": A[:5], "labels": Y[:5]}))
    assert (len(split.train), len(split.test)) == (20, 5)


@pytest.mark.parametrize("source", [(A, Y), (list(A), Y), ((A, Y), (A[:3], Y[:3])), {"name": "csv"}], ids=str)
def test_usual_sources_are_no_nestings(source: Any) -> None:
    assert not is_nested(source)


def test_arrays_of_different_lengths_are_refused() -> None:
    with pytest.raises(DataError, match="the arrays have 20, 19, 20 rows"):
        Split.of(((A, B[:19]), Y))
    with pytest.raises(DataError, match="must hold numbers"):
        Split.of(((A, np.array(["x"] * 20)), Y))


def test_a_mapping_that_is_no_dictionary_is_data_of_a_run(tmp_path: Path) -> None:
    data = UserDict({"input": A / 40, "labels": Y})
    run = chimera.train(
        torch.nn.Linear(2, 2), data, engine="simulated", rounds=1, progress=False, out=str(tmp_path / "run")
    )
    assert np.isfinite(run.metrics["loss"])


def test_arrays_of_a_file_of_numpy_are_columns(tmp_path: Path) -> None:
    np.savez(tmp_path / "arrays.npz", a=A, labels=Y)
    with np.load(tmp_path / "arrays.npz") as arrays:
        split = Split.of(arrays)
    assert split.train.take(np.array([3, 0]))["a"].shape == (2, 2)


def test_a_folder_is_read_as_images(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for row in range(10):
        path = tmp_path / "ab"[row % 2] / f"{row}.png"
        path.parent.mkdir(exist_ok=True)
        image.fromarray(np.full((4, 4, 3), row, np.uint8)).save(path)
    split = Split.of(tmp_path)
    assert (len(split.train), len(split.test), split.train.classes) == (8, 2, ("a", "b"))


def samples() -> Any:
    for row in range(7):
        yield np.float32([row]), row % 2


def test_samples_of_an_unknown_number_are_counted() -> None:
    split = Split.of((samples, samples))
    assert isinstance(split.train, IterableSamples)
    assert (len(split.train), len(split.test)) == (7, 7)


def test_an_endless_data_set_needs_its_number_of_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless() -> Any:
        while True:
            yield np.float32([0]), 0

    monkeypatch.setattr(iterable, "COUNT_S", 0.01)
    with pytest.raises(ConfigurationError, match=r"counting its samples takes longer than .* chimera.IterableSamples"):
        Split.of((endless, samples))

"""Targets of 0 and 1 in several columns: the losses that train on them, and the errors without a loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import default_collate

import chimera
from chimera.core.errors import DataError

N = 96
RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 3, N)
INPUTS = (RNG.normal(size=(N, 4)) * 0.3 + 2 * np.eye(4)[LABELS]).astype(np.float32)
NAMED: Any = {"classes": ["background", "cat", "dog"]}
ONE_HOT = np.eye(3, dtype=int)[LABELS]
SEVERAL = ONE_HOT | np.roll(ONE_HOT, 1, axis=1) * (INPUTS[:, 3:] > 0)
MLP = {"name": "mlp", "hidden": [8]}


class Samples(TorchDataset):  # type: ignore[type-arg]
    def __init__(self, targets: Any) -> None:
        self.goals = targets

    def __len__(self) -> int:
        return N

    def __getitem__(self, row: int) -> Any:
        return INPUTS[row], self.goals[row]


def train(model: Any, data: Any) -> dict[str, float]:
    options: dict[str, Any] = {"engine": "simulated", "workers": 2, "batch_size": 16, "epochs": 10, "seed": 1}
    return chimera.train(model, data, optimizer={"name": "adam", "lr": 0.05}, progress=False, **options).metrics


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 3)


@pytest.fixture(autouse=True)
def folder_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("kind", [np.int64, np.bool_, np.float64])
def test_one_hot_targets_need_a_named_loss(kind: Any) -> None:
    for model in (linear(), MLP):
        with pytest.raises(DataError, match=r"one-hot rows of 3 classes: give class indices, targets.argmax\(1\)"):
            train(model, (INPUTS, ONE_HOT.astype(kind)))


@pytest.mark.parametrize("lazy", [False, True])
def test_several_labels_need_a_named_loss(lazy: bool) -> None:
    targets = SEVERAL.astype(np.float32)
    with pytest.raises(DataError, match="0 or 1 in 3 columns: name the loss, 'bce-with-logits'"):
        train(linear(), Samples(targets) if lazy else (INPUTS, targets))


@pytest.mark.parametrize("collate", [None, default_collate])
def test_a_stream_of_one_hot_targets_needs_a_named_loss(collate: Any) -> None:
    targets = ONE_HOT.astype(np.float32)

    def stream() -> Any:
        yield from zip(INPUTS, targets, strict=True)

    data = chimera.Split(*(chimera.IterableSamples(stream, samples=N, collate=collate) for _ in range(2)))
    for model in (linear(), MLP):
        with pytest.raises(DataError, match="one-hot rows of 3 classes: give class indices"):
            train(model, data)
    assert train(MLP | {"loss": "cross-entropy"}, data)["accuracy"] > 0.9


def test_a_stream_of_values_trains() -> None:
    def stream() -> Any:
        yield from zip(INPUTS, INPUTS[:, :3] * (np.arange(N) > 3)[:, None], strict=True)

    assert "r2" in train(linear(), chimera.Split(*(chimera.IterableSamples(stream, samples=N) for _ in range(2))))


@pytest.mark.parametrize("loss", ["cross-entropy", "bce-with-logits"])
def test_named_losses_train_on_one_hot_rows(loss: str) -> None:
    assert train(MLP | {"loss": loss}, (INPUTS, ONE_HOT))["accuracy"] > 0.9


@pytest.mark.parametrize("kind", ["array", "column", "samples", "stream", "frame"])
def test_real_labels_of_two_classes_need_a_named_loss(kind: str) -> None:
    labels = (LABELS > 0).astype(np.float32)

    def stream() -> Any:
        yield from zip(INPUTS, labels, strict=True)

    data = {
        "array": (INPUTS, labels),
        "column": (INPUTS, labels[:, None]),
        "samples": Samples(labels),
        "stream": chimera.Split(*(chimera.IterableSamples(stream, samples=N) for _ in range(2))),
        "frame": pd.DataFrame(INPUTS).assign(y=labels),
    }[kind]
    for model in (nn.Linear(4, 1), MLP):
        with pytest.raises(DataError, match="real numbers that are all 0 or 1: for classes give integers, or name the"):
            train(model, data)
    assert train(MLP | {"loss": "bce-with-logits"}, data)["accuracy"] > 0.9
    assert "r2" in train(MLP | {"loss": "mse"}, data)


@pytest.mark.parametrize("lazy", [False, True])
def test_counts_and_constants_are_values(lazy: bool) -> None:
    for targets in (np.where(np.arange(N) % 10 == 5, 2.0, LABELS > 0), np.zeros(N)):
        data = Samples(targets.astype(np.float32)) if lazy else (INPUTS, targets)
        assert "mse" in train(nn.Linear(4, 1), data)


def test_a_named_loss_trains_on_real_labels_and_refuses_those_outside_its_range() -> None:
    labels = (LABELS > 0).astype(np.float64)
    assert train(MLP | {"loss": "bce-with-logits"}, (INPUTS, labels))["accuracy"] > 0.9
    for model in (MLP | {"loss": "bce-with-logits"}, chimera.TorchModel(nn.Linear(4, 1), loss="bce-with-logits")):
        with pytest.raises(DataError, match="needs targets from 0 to 1, but these range from -1 to 1"):
            train(model, (INPUTS, 2 * labels - 1))


def test_samples_with_one_hot_integers_train_like_class_indices_and_other_integers_are_refused() -> None:
    found = train(linear(), Samples(ONE_HOT))
    assert found["loss"] == pytest.approx(train(linear(), Samples(LABELS))["loss"], abs=0.05)
    with pytest.raises(DataError, match=r"for several labels per sample, use 'bce-with-logits'"):
        train(linear(), Samples(SEVERAL))


def test_values_to_predict_are_not_classes() -> None:
    for targets in (ONE_HOT * [1, 2, 1], ONE_HOT + 1, INPUTS[:, :2].astype(int), INPUTS[:, :3]):
        model = nn.Linear(4, targets.shape[1])
        assert "r2" in train(model, (INPUTS, targets))
    assert "r2" in train(MLP | {"loss": "mse"}, (INPUTS, ONE_HOT))


@pytest.mark.parametrize("lowest", [1, 0, -3])
def test_a_loss_of_values_refuses_integers_that_became_indices_of_classes(lowest: int) -> None:
    model = chimera.TorchModel(nn.Linear(4, 1), loss="mse")
    if lowest == 0:
        assert "r2" in train(model, (INPUTS, LABELS))
        return
    with pytest.raises(DataError, match=r"'mse' predicts values, but the targets are 3 classes, .* give real numbers"):
        train(model, (INPUTS, LABELS + lowest))
    assert "r2" in train(model, (INPUTS, (LABELS + lowest).astype(float)))


@pytest.mark.parametrize("ignored", [-100, 255])
def test_labels_that_a_loss_ignores_are_not_numbered_as_a_class(ignored: int) -> None:
    """Before, index 0 of four outputs was trained on the rows that must not count."""
    torch.manual_seed(0)
    model = chimera.TorchModel(nn.Linear(4, 4), loss=nn.CrossEntropyLoss(ignore_index=ignored))
    labels = np.where(np.arange(N) % 4 == 0, ignored, LABELS)
    with pytest.raises(
        DataError,
        match=rf"targets of {ignored}, .* numbered as a class .*: leave out their rows; if they are a class, number",
    ):
        train(model, (INPUTS, labels))
    assert np.isfinite(train(model, (INPUTS, LABELS))["loss"])


def test_an_ignored_index_is_not_that_of_another_label() -> None:
    model = chimera.TorchModel(linear(), loss=nn.CrossEntropyLoss(ignore_index=2))
    with pytest.raises(DataError, match="ignore_index=2, but this is the index of the class '5'"):
        train(model, (INPUTS, 2 * LABELS + 1))


def test_an_ignored_index_of_labels_from_0_is_kept() -> None:
    model = chimera.TorchModel(linear(), loss=nn.CrossEntropyLoss(ignore_index=2))
    assert np.isfinite(train(model, (INPUTS, LABELS))["loss"])


@pytest.mark.parametrize("names", [True, False])
def test_an_ignored_index_of_named_classes_is_the_index_that_was_meant(names: bool) -> None:
    classes = np.array(["background", "cat", "dog"])
    given = chimera.Split.of((INPUTS, classes[LABELS]) if names else (INPUTS, LABELS), **({} if names else NAMED))
    model = chimera.TorchModel(linear(), loss=nn.CrossEntropyLoss(ignore_index=0))
    assert np.isfinite(train(model, given)["loss"])

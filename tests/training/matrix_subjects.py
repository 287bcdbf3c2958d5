"""Models and data of the matrix of tests: what practitioners bring, in its smallest form.

Each subject has a model and data of 60 train samples, small enough for a run in a fraction of a second. ``augmented`` data
change at each reading, at random.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

import chimera
import lightning_kit

TRAIN, TEST = 60, 12


@dataclass(frozen=True)
class Subject:
    """A model with its data.

    Attributes
    ----------
    model : returns a fresh model; each call the same weights.
    data : function of a folder for files, and of whether the samples change at random, that returns what ``data=`` takes.
    metrics : names of the metrics that a run reports.
    """

    model: Callable[[], Any]
    data: Callable[[Path, bool], Any]
    metrics: frozenset[str] = frozenset({"loss", "accuracy"})


class Rows(Dataset):  # type: ignore[type-arg]
    """Samples by their numbers, made by a function."""

    def __init__(self, sample: Callable[[int], Any], size: int = TRAIN) -> None:
        self.sample, self.size = sample, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, row: int) -> Any:
        return self.sample(row)


def seeded(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Return a function that makes the module with the same weights at each call."""

    def made() -> nn.Module:
        torch.manual_seed(5)
        return make()

    return made


class Residual(nn.Module):
    """A residual network with one block; group normalization, so that samples of a batch do not affect one another."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.one, self.two = nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(4, 4, 3, 1, 1), nn.Conv2d(4, 4, 3, 1, 1)
        self.norm, self.out = nn.GroupNorm(2, 4), nn.Linear(4, 3)

    def forward(self, pixels: Any) -> Any:
        x = torch.relu(self.first(pixels))
        x = torch.relu(self.norm(x + self.two(torch.relu(self.one(x)))))
        return self.out(x.mean((2, 3)))


def mirror(image: Any) -> Any:
    """Return the pixels of an image, mirrored at random."""
    pixels = np.asarray(image, np.float32).transpose(2, 0, 1) / 255
    return pixels[:, :, ::-1].copy() if random.random() < 0.5 else pixels


def image_files(folder: Path, augmented: bool) -> Any:
    from PIL import Image

    for row in range(TRAIN + TEST):
        part = "train" if row < TRAIN else "test"
        pixels = np.random.default_rng(row).integers(0, 150, (8, 8, 3), np.uint8)
        pixels[2 * (row % 3) : 2 * (row % 3) + 2, :4] += 100
        path = folder / "images" / part / str(row % 3)
        path.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path / f"{row}.png")
    options = {"transform": mirror} if augmented else {}
    return {
        "name": "image-folder",
        "path": str(folder / "images/train"),
        "test_path": str(folder / "images/test"),
        **options,
    }


def bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return BertForSequenceClassification(BertConfig(vocab_size=16, num_labels=2, **sizes, **dropout))


def texts(folder: Path, augmented: bool) -> Any:
    def sample(row: int) -> dict[str, Any]:
        tokens = torch.tensor(np.random.default_rng(row).integers(1, 9, 6) + 7 * (row % 2))
        if augmented:
            tokens = torch.where(torch.rand(6) < 0.2, 0, tokens)  # mask some words
        return {"input_ids": tokens, "attention_mask": torch.ones(6, dtype=torch.int64), "labels": row % 2}

    return Rows(sample), Rows(sample, TEST)


class Language(nn.Module):
    """A causal language model of bytes, with tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.mix = nn.Embedding(256, 8), nn.GRU(8, 8, batch_first=True)
        self.out = nn.Linear(8, 256, bias=False)
        self.out.weight = self.tokens.weight

    def forward(self, tokens: Any) -> Any:
        return self.out(self.mix(self.tokens(tokens))[0])


def text_blocks(folder: Path, augmented: bool) -> Any:
    path = folder / "text.txt"
    path.write_text("Call me Ishmael. Some years ago - never mind how long precisely - " * 10)
    return {"name": "text-blocks", "path": str(path), "block": 8}


class TwoTowers(nn.Module):
    """Scores of pairs: the product of what two networks compute from two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Linear(4, 3), nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))

    def forward(self, user: Any, item: Any) -> Any:
        return self.users(user) * self.items(item)


def pairs(folder: Path, augmented: bool) -> Any:
    def sample(row: int) -> Any:
        rng = np.random.default_rng(row)
        user, item = rng.standard_normal(4).astype(np.float32), rng.standard_normal(5).astype(np.float32)
        if augmented:
            user = user + np.random.standard_normal(4).astype(np.float32)
        return user, item, int(user[0] * item[0] > 0)

    return Rows(sample), Rows(sample, TEST)


class Recurrent(nn.Module):
    """An LSTM over sequences of different lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(2, 6, batch_first=True), nn.Linear(6, 2)

    def forward(self, series: Any, lengths: Any) -> Any:
        packed = nn.utils.rnn.pack_padded_sequence(series, lengths, batch_first=True, enforce_sorted=False)
        return self.out(self.lstm(packed)[1][0][-1])


def pad(samples: list[Any]) -> dict[str, Any]:
    """Collate series of different lengths."""
    series = [torch.as_tensor(one) for one, _ in samples]
    return {
        "series": nn.utils.rnn.pad_sequence(series, batch_first=True),
        "lengths": torch.tensor([len(one) for one in series]),
        "labels": torch.tensor([label for _, label in samples]),
    }


def series(folder: Path, augmented: bool) -> Any:
    def sample(row: int) -> Any:
        values = np.random.default_rng(row).standard_normal((3 + row % 4, 2)).astype(np.float32) + row % 2
        return (values + np.float32(random.gauss(0, 0.1)) if augmented else values), row % 2

    return tuple(chimera.SampleDataset(Rows(sample, size), collate=pad) for size in (TRAIN, TEST))


def noisy_rows(folder: Path, augmented: bool) -> Any:
    def sample(row: int) -> Any:
        values = np.random.default_rng(row).standard_normal(4).astype(np.float32) + row % 3
        return (values + np.float32(random.gauss(0, 0.1)) if augmented else values), row % 3

    return Rows(sample), Rows(sample, TEST)


def table(folder: Path, augmented: bool) -> Any:
    import pyarrow
    from pyarrow import parquet

    rng, paths = np.random.default_rng(3), []
    for part, rows in (("train", TRAIN), ("test", TEST)):
        age, city = rng.integers(18, 80, rows), rng.choice(["Oslo", "Rome"], rows)
        columns = {"age": age, "city": city, "income": rng.standard_normal(rows), "churn": (age > 50).astype(int)}
        paths.append(folder / f"{part}.parquet")
        parquet.write_table(pyarrow.table(columns), paths[-1])
    return {"name": "parquet", "path": str(paths[0]), "test_path": str(paths[1])}


SUBJECTS = {
    "residual-network": Subject(seeded(Residual), image_files),
    "bert": Subject(seeded(bert), texts),
    "language-model": Subject(seeded(Language), text_blocks, frozenset({"loss"})),
    "two-towers": Subject(lambda: chimera.TorchModel(seeded(TwoTowers)()), pairs),
    "lstm": Subject(seeded(Recurrent), series),
    "lightning": Subject(lightning_kit.made("none"), noisy_rows, frozenset({"loss", "val_acc"})),
    "parquet": Subject(lambda: {"name": "mlp", "hidden": [4]}, table),
}


def stopped_after(rounds: int) -> chimera.Callback:
    """Return a callback that raises `StoppedError` after so many rounds."""

    class Stop(chimera.Callback):
        def on_progress(self, progress: chimera.Progress) -> None:
            if progress.rounds >= rounds:
                raise StoppedError

    return Stop()


class StoppedError(Exception):
    """The end of a run in a test, without a last checkpoint."""

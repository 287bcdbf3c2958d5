"""A data set with poisonous samples, on which the loss and gradient of a network are NaN."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from chimera.data.dataset import Dataset
from chimera.data.split import DATASETS, Split
from chimera.models.torch_model import TorchModel

MARK = 7.0


class NanOnPoison(torch.nn.Module):
    """A network that divides by zero if the first pixel of an image is `MARK`."""

    def __init__(self, hidden: int = 16, normalised: bool = False) -> None:
        super().__init__()
        layers = [torch.nn.Linear(64, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 10)]
        if normalised:
            layers.insert(1, torch.nn.BatchNorm1d(hidden))
        self.layers = torch.nn.Sequential(*layers)

    def forward(self, images: torch.Tensor) -> Any:
        """Return the scores of ten classes; NaN for poisonous samples."""
        return self.layers(images / (images[:, :1] != MARK))


def nan_on_poison(normalised: bool = False) -> TorchModel:
    """Return the network as a model; statistics of batch normalisation are averaged over the workers."""
    return TorchModel(partial(NanOnPoison, normalised=normalised), seed=0, buffers="average" if normalised else "none")


def round_robin(labels: Any, world_size: int, rng: Any) -> list[np.ndarray[Any, Any]]:  # noqa: ARG001 - the signature of partitions
    """Return the partition that gives rank r the samples r, r + n, r + 2n, ..."""
    return [np.arange(rank, len(labels), world_size) for rank in range(world_size)]


def digits(poisoned: Mapping[int, int], workers: int = 3) -> Split:
    """Return the digits, with the given number of poisonous samples in the part that `round_robin` gives to each rank."""
    split = DATASETS.create("digits")
    assert isinstance(split.train, Dataset)
    inputs = split.train.inputs.copy()
    for rank, count in poisoned.items():
        inputs[np.arange(rank, len(inputs), workers)[:count], 0] = MARK
    return replace(split, train=replace(split.train, inputs=inputs))

"""Digits some of which are poison to a network: on those its loss and its gradient are NaN."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from chimera.data.dataset import DATASETS, Split

MARK = 7.0


class Fragile(torch.nn.Module):
    """Divides by zero where the first pixel of an image is `MARK`."""

    def __init__(self, hidden: int = 16, normalised: bool = False) -> None:
        super().__init__()
        layers = [torch.nn.Linear(64, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 10)]
        if normalised:
            layers.insert(1, torch.nn.BatchNorm1d(hidden))
        self.layers = torch.nn.Sequential(*layers)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images / (images[:, :1] != MARK))


class NanGradient(torch.autograd.Function):
    """The identity, whose gradient is NaN where told."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor, bad: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(bad)
        return values.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (bad,) = context.saved_tensors
        return gradient.masked_fill(bad, float("nan")), None


class Deceptive(Fragile):
    """Its loss is always finite; only its gradient tells."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = self.layers[:2](images.clamp(max=1))
        return self.layers[2:](NanGradient.apply(hidden, images[:, :1] == MARK))


def in_turn(labels: Any, world_size: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Give rank r the samples r, r + n, r + 2n, ..."""
    return [np.arange(rank, len(labels), world_size) for rank in range(world_size)]


def digits(poisoned: Mapping[int, int] | Sequence[int] = (), workers: int = 3) -> Split:
    """Return the digits, with so many poisonous samples in the part that `in_turn` gives a rank."""
    split = DATASETS.create("digits")
    inputs = split.train.inputs.copy()
    for rank, count in dict(poisoned).items():
        inputs[np.arange(rank, len(inputs), workers)[:count], 0] = MARK
    return replace(split, train=replace(split.train, inputs=inputs))

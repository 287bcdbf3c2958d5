"""A network that calls a function during evaluations in the driver."""

from __future__ import annotations

from collections.abc import Callable

import torch

during_evaluation: list[Callable[[], None]] = []
"""Functions that the next evaluation in this process calls, each once."""


class Net(torch.nn.Sequential):
    """A network of two layers."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        while not self.training and during_evaluation:
            during_evaluation.pop()()
        return super().forward(inputs)


def build() -> torch.nn.Module:
    torch.manual_seed(0)
    return Net(torch.nn.Linear(64, 16), torch.nn.Tanh(), torch.nn.Dropout(0.2), torch.nn.Linear(16, 10))

"""Your own PyTorch code: a module, and a data set that reads one sample at a time."""

import torch
from torch import nn
from torch.utils.data import Dataset


class Network(nn.Module):
    """A network of two layers."""

    def __init__(self, columns: int = 8, width: int = 32) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(columns, width), nn.Tanh(), nn.Linear(width, 2))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return logits, shape (n, 2)."""
        return self.layers(inputs)


class Points(Dataset):
    """Points with the label of the side of a curved surface on which they lie."""

    def __init__(self, samples: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.inputs = torch.randn(samples, 8, generator=generator)
        self.labels = (self.inputs[:, 0] * self.inputs[:, 1] + self.inputs[:, 2] > 0).long()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs[number], self.labels[number]

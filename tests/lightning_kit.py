"""A classifier as a Lightning module: of a plain ``nn.Module``, and of the real library where it is installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

LIBRARIES = ["none", pytest.param("lightning.pytorch", marks=pytest.mark.long)]  # the library takes seconds to import
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(60, 4)).astype(np.float32), RNG.integers(0, 3, 60)

SEEN: list[Any] = []
"""What steps in simulated workers note; these have a copy of the module, but this module is theirs, too."""


class Steps:
    """The methods of a Lightning module; a mixin before ``nn.Module`` or ``LightningModule``."""

    def __init__(self, lr: float = 0.1, seed: int = 3) -> None:
        super().__init__()
        self.lr = lr
        torch.manual_seed(seed)
        self.net: Any = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x: Any) -> Any:
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        loss = F.cross_entropy(self(x), y)  # type: ignore[operator]
        self.log("train_loss", loss, prog_bar=True)  # type: ignore[attr-defined]
        return {"loss": loss, "y": y}

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        outputs = self(x)  # type: ignore[operator]
        loss = F.cross_entropy(outputs, y)
        self.log_dict({"val_loss": loss, "val_acc": (outputs.argmax(1) == y).float().mean()})  # type: ignore[attr-defined]
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)  # type: ignore[attr-defined]


def base_of(library: str) -> Any:
    """Return the base class of modules; skip the test if the library is not installed."""
    if library == "none":
        return nn.Module
    return pytest.importorskip(library, reason=f"{library} is not installed: pip install lightning").LightningModule


def made(library: str, **methods: Any) -> Any:
    """Return the class of the classifier, with other methods or attributes."""
    return type("Classifier", (Steps, base_of(library)), {"__module__": __name__, **methods})


def plain() -> nn.Sequential:
    """Return the same network without steps, with the same initial weights."""
    return Steps_network().net


class Steps_network(Steps, nn.Module):  # noqa: N801
    """The network of `plain`."""

"""A LightningModule without changes: four workers train it on handwritten digits, with its own steps, optimizer and schedule.

Takes about 20 s on two cores. Needs Lightning: pip install lightning
"""

import lightning
import torch
from torch.nn import functional as F  # noqa: N812 - its usual name

import chimera


class Digits(lightning.LightningModule):
    """A small network that logs its accuracy."""

    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(torch.nn.Linear(64, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 10))

    def forward(self, images):
        """Return the scores of ten classes."""
        return self.net(images)

    def training_step(self, batch, batch_idx):
        """Return the loss of a batch."""
        images, labels = batch
        return F.cross_entropy(self(images), labels)

    def validation_step(self, batch, batch_idx):
        """Log loss and accuracy, which become metrics of the run."""
        images, labels = batch
        scores = self(images)
        self.log("val_loss", F.cross_entropy(scores, labels))
        self.log("val_acc", (scores.argmax(1) == labels).float().mean())

    def configure_optimizers(self):
        """Return the optimizer of the run and its schedule."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.trainer.max_epochs)]


if __name__ == "__main__":
    run = chimera.train(
        Digits(), "digits", strategy="all-reduce", workers=4, batch_size=16, epochs=20, monitor="val_acc", keep="best"
    )
    print({name: round(value, 3) for name, value in run.metrics.items()}, "stopped by", run.stopped_by)
    print("report:", run.run_dir / "report.html")

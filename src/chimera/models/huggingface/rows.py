"""A model of the library transformers on rows of numbers, as tables have them: from tokens to probabilities of classes."""

from __future__ import annotations

from typing import Any

from chimera.core.errors import DataError
from chimera.models.huggingface.step import LibraryStep, known_tokens
from chimera.models.metrics import Metrics
from chimera.models.torch_model import TorchModel

TASK = "sequence-classification"
"""The only task of which each sample is one row with one target."""


class RowStep(LibraryStep):
    """The step of the library on rows of tokens that are stored as real numbers; it predicts probabilities."""

    def __call__(self, module: Any, batch: Any) -> Any:
        """See `LibraryStep`; the batch is a pair (rows, classes).

        Raises
        ------
        DataError : a number that is no token, or a token that the model does not know.
        """
        rows, classes = batch
        return super().__call__(module, (_tokens(rows), classes.long()))

    def predict(self, module: Any, inputs: Any) -> Any:
        """Return the probabilities of the classes, shape (n, classes)."""
        with known_tokens(module):
            return self.logits(module, _tokens(inputs)).float().softmax(-1)


def on_rows(module: Any, metrics: Metrics) -> TorchModel:
    """Return a model of a module of the task `TASK` that computes on rows of tokens."""
    return TorchModel(module, step=RowStep(TASK, module), metrics=metrics, task="classification")


def _tokens(rows: Any) -> Any:
    tokens = rows.long()
    if ((tokens != rows) | (tokens < 0)).any():
        raise DataError("a row holds a number that is no token: tokens are whole numbers, at least 0")
    return tokens

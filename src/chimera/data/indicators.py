"""Targets that are rows of 0 and 1, one column for each class: checks of the loss that trains on them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from chimera.core.batch import targets_of
from chimera.core.errors import DataError
from chimera.data.collation import as_host_array
from chimera.data.dataset import Dataset, TrainingData
from chimera.data.iterable import IterableSamples
from chimera.data.samples import SampleDataset

_WHERE = "(for a module: chimera.TorchModel(module, loss=...))"
_EXAMINED = 256  # maximum number of samples that are read from a data set outside of memory
_AT_ONCE = 32  # maximum number of these samples in memory at a time: they may be images


def check_default_loss(train: TrainingData, min_columns: int = 1) -> None:
    """Check that the targets are values, not classes, for a run whose loss the user did not name.

    Targets of fewer than ``min_columns`` columns are not checked: a part of the data may contain only 0 and 1 by chance.

    Raises
    ------
    DataError : the targets contain only 0 and 1: they are classes.
    """
    targets = _targets(train)
    if targets is None or targets.ndim not in (1, 2) or not _are_indicators(targets):
        return
    columns = 1 if targets.ndim == 1 else targets.shape[1]
    if columns < min_columns:
        return
    if columns == 1:
        if targets.min() == targets.max():
            return
        raise DataError(
            "the targets are real numbers that are all 0 or 1: for classes give integers, or name the loss, 'bce-with-logits' "
            f"for a model of one output; to predict the values, name 'mse' {_WHERE}"
        )
    if (targets.sum(1) == 1).all():
        raise DataError(
            f"the targets are one-hot rows of {columns} classes: give class indices, targets.argmax(1), or name the loss, "
            f"'cross-entropy', 'bce-with-logits', or 'mse' to predict the values {_WHERE}"
        )
    raise DataError(
        f"the targets are 0 or 1 in {columns} columns: name the loss, 'bce-with-logits' for several labels per sample, or "
        f"'mse' to predict the values {_WHERE}"
    )


def check_probabilities(train: TrainingData, loss: str) -> None:
    """Check the targets in memory for a loss of probabilities, such as ``bce-with-logits``.

    Raises
    ------
    DataError : a target is below 0 or above 1.
    """
    if not isinstance(train, Dataset) or train.classes is not None:
        return
    low, high = float(train.targets.min()), float(train.targets.max())
    if low < 0 or high > 1:
        raise DataError(f"the loss {loss!r} needs targets from 0 to 1, but these range from {low:g} to {high:g}")


def check_values(train: TrainingData, loss: str) -> None:
    """Check the targets in memory for a loss of values, such as ``mse``.

    Raises
    ------
    DataError : the targets are classes whose indices differ from their labels, such as integers from 1 to 5.
    """
    if classes := _renumbered(train):
        raise DataError(
            f"the loss {loss!r} predicts values, but the targets are {len(classes)} classes, {classes[0]!r} to "
            f"{classes[-1]!r}: give real numbers, such as targets.astype(float)"
        )


def check_ignored(train: TrainingData, ignored: int) -> None:
    """Check the targets in memory for a loss of classes that does not count targets of one index, such as -100.

    Raises
    ------
    DataError : the targets are integers that became indices of classes, and the index means a label or another class.
    """
    classes = _renumbered(train)
    if not all(name.lstrip("-").isdecimal() for name in classes):
        return  # of classes with names, the user can mean the index only
    if str(ignored) in classes:
        raise DataError(
            f"targets of {ignored}, which the loss does not count, were numbered as a class like the other labels "
            f"({classes[0]!r} to {classes[-1]!r}): leave out their rows; if they are a class, number the classes 0, 1, ..."
        )
    if 0 <= ignored < len(classes):
        raise DataError(
            f"the loss does not count targets of ignore_index={ignored}, but this is the index of the class "
            f"{classes[ignored]!r}, since the labels ({classes[0]!r} to {classes[-1]!r}) were numbered from 0: leave out the "
            "rows that must not count"
        )


def _renumbered(train: TrainingData) -> tuple[str, ...]:
    """Return the labels of targets in memory, if their indices differ from them; otherwise none."""
    if not isinstance(train, Dataset) or train.classes is None:
        return ()
    return () if train.classes == tuple(map(str, range(train.outputs))) else train.classes


def _targets(train: TrainingData) -> Any:
    """Return the targets in memory, or those of a few samples; None if they are not numbers to predict."""
    if train.task != "regression":
        return None
    if isinstance(train, Dataset):
        return train.targets
    if not isinstance(train, SampleDataset | IterableSamples) or not _are_indicators(targets_of(train.first)):
        return None
    if isinstance(train, IterableSamples):
        some: Any = replace(train, samples=min(_EXAMINED, len(train)), _streams={}, _restored={})
    else:
        some = train.whole(np.unique(np.linspace(0, len(train) - 1, _EXAMINED).astype(np.int64)))
    found = []
    for piece in some.pieces(_AT_ONCE):
        found.append(np.asarray(as_host_array(targets_of(piece))))
        if not _are_indicators(found[-1]):
            break
    return np.concatenate(found)


def _are_indicators(targets: Any) -> bool:
    found = np.asarray(as_host_array(targets))
    return bool(((found[:64] == 0) | (found[:64] == 1)).all() and ((found == 0) | (found == 1)).all())

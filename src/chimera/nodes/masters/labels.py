"""Labels that workers report: their validation, and their union."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np


def read_labels(name: str, value: Any) -> list[Any]:
    """Return the labels of an answer; ``name`` is for messages.

    Raises
    ------
    ValueError : the value is not a list of texts, or of finite numbers and booleans.
    """
    labels = value.tolist() if isinstance(value, np.ndarray) else value
    if not isinstance(labels, list | tuple):
        raise ValueError(f"{name} must be a list")
    texts = sum(isinstance(label, str) for label in labels)
    numbers = sum(isinstance(label, bool | int | float) and math.isfinite(label) for label in labels)
    if len(labels) not in (texts, numbers):
        raise ValueError(f"{name} must be texts, or finite numbers and booleans")
    return list(labels)


def kind_of(labels: Sequence[Any]) -> str:
    """Return whether labels, at least one, are texts or numbers, for messages."""
    return "texts" if isinstance(labels[0], str) else "numbers"


def union(labels: Iterable[Sequence[Any]]) -> list[Any]:
    """Return the sorted union of labels of one kind."""
    return sorted({label for known in labels for label in known})

"""Plain text as training data for word embeddings: vocabulary, windows, and the stages that make them (docs/text.md)."""

from __future__ import annotations

from typing import Any, cast

from chimera.data.dataset import DATASETS, Dataset, Split
from chimera.data.text.source import Paths

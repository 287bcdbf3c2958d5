"""The number of tokens for which a model of transformers has positions."""

from __future__ import annotations

from typing import Any


def position_limits(model: Any) -> list[int]:
    """Return the largest number of tokens of each table of learned positions of a model; none if it has no such table."""
    from torch import nn

    return [
        part.num_embeddings
        - (0 if part.padding_idx is None else part.padding_idx + 1)  # positions that RoBERTa does not use
        for name, part in model.named_modules()
        if name.endswith("position_embeddings") and isinstance(part, nn.Embedding)
    ]

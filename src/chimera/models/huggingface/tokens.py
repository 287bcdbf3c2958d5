"""Tokens of a batch and parameters of a module, from which its FLOPs follow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from chimera.core.batch import Batch, inputs_of

_UNUSED = "original_module"  # peft keeps the head that a trained copy replaces


def parameter_counts(module: Any) -> tuple[int, int]:
    """Return the numbers of trained and of frozen parameters; tied ones count once, and those that are never used do not."""
    sizes = [0, 0]
    for name, parameter in module.named_parameters():
        if _UNUSED not in name.split("."):
            sizes[not parameter.requires_grad] += parameter.numel()
    return sizes[0], sizes[1]


def tokens_in(batch: Batch, main_input: str) -> int | None:
    """Return the number of tokens of a batch; None if the batch has none where a model of the library reads them.

    Tokens are those that the attention mask, shape (n, t), does not exclude; without a mask, all of ``main_input``, of the same
    shape.
    """
    inputs = inputs_of(batch)
    given = inputs if isinstance(inputs, Mapping) else {main_input: inputs}
    mask, tokens = given.get("attention_mask"), given.get(main_input)
    if mask is not None and len(getattr(mask, "shape", ())) == 2:
        return int((mask != 0).sum())
    shape = getattr(tokens, "shape", ())
    return math.prod(shape) if len(shape) == 2 else None

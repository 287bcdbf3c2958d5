"""Adapters trained by transformers, peft and PyTorch alone, as a user without Chimera trains them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

Batch = tuple[torch.Tensor, torch.Tensor]
"""Tokens and the next tokens, shape (n, block) each."""


def with_adapters(base: Any, *, r: int, alpha: int, targets: list[str], seed: int) -> Any:
    """Return a causal language model with new adapters."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    return get_peft_model(base, LoraConfig(r=r, lora_alpha=alpha, target_modules=targets, task_type="CAUSAL_LM"))


def trained(model: Any) -> dict[str, torch.Tensor]:
    """Return the parameters that are trained, by name."""
    return {name: each for name, each in model.named_parameters() if each.requires_grad}


def step(model: Any, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
    """Take one step on a batch."""
    optimizer.zero_grad()
    _loss(model, batch).backward()
    optimizer.step()


def perplexity(model: Any, batches: Iterable[Batch]) -> float:
    """Return the perplexity over all tokens; the batches have equally many tokens, except the last one."""
    model.eval()
    with torch.no_grad():
        found = [(_loss(model, batch).item(), len(batch[0])) for batch in batches]
    model.train()
    return math.exp(sum(loss * rows for loss, rows in found) / sum(rows for _, rows in found))


def _loss(model: Any, batch: Batch) -> torch.Tensor:
    logits = model(input_ids=batch[0], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[1].flatten())

"""Small models of the library transformers, and texts, for tests."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

MARKS = [
    pytest.mark.takes("it imports transformers"),
    *(
        pytest.mark.skipif(
            importlib.util.find_spec(name) is None, reason=f"{name} is not installed: pip install {name}"
        )
        for name in ("transformers", "peft")
    ),
]
"""The marks of a module whose tests use these libraries: they are imported in the tests, not when tests are collected."""

GPT: dict[str, Any] = {
    "model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 32, "vocab_size": 256,
    "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
LLAMA: dict[str, Any] = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 32, "vocab_size": 256,
}  # fmt: skip
BERT: dict[str, Any] = {
    "model_type": "bert", "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2,
    "max_position_embeddings": 32, "vocab_size": 256,
}  # fmt: skip
T5: dict[str, Any] = {
    "model_type": "t5", "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "vocab_size": 256,
    "decoder_start_token_id": 0,
}  # fmt: skip
TOKENS = np.random.default_rng(0).integers(0, 256, (12, 17))
PAIR = TOKENS[:, :-1].copy(), TOKENS[:, 1:].copy()
"""Tokens and the next tokens, shape (12, 16) each."""


def made(task: str = "causal-lm", classes: int = 3, **options: Any) -> Any:
    """Return the model ``huggingface`` for these options."""
    from chimera.models.conversion import build_model

    return build_model(
        "huggingface", {"task": task, **options}, input_shape=(16,), outputs=classes, task="classification", seed=5
    )


def written_base(folder: Path, config: dict[str, Any] = GPT, task: str = "causal-lm") -> str:
    """Write a base model of random weights as transformers does; return the folder."""
    made(task, **{"from": "config", "config": config}).module.save_pretrained(folder)
    return str(folder)


def text(folder: Path, size: int = 3000) -> str:
    """Write a text of words in which some follow others often."""
    rng, words = np.random.default_rng(1), ("the", "white", "whale", "swims", "away", "and", "Ahab", "waits")
    path = folder / "text.txt"
    at, said = 0, []
    for _ in range(size):
        at = (at + 1) % len(words) if rng.random() < 0.8 else int(rng.integers(len(words)))
        said.append(words[at])
    path.write_text(" ".join(said), encoding="utf-8")
    return str(path)

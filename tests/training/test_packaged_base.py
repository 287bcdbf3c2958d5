"""Federated adapters on a base in an installed package."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import chimera
from language_kit import LLAMA, MARKS, PAIR, text, written_base

pytestmark = MARKS
LORA: dict[str, Any] = {"r": 8, "alpha": 16, "targets": ["q_proj", "v_proj"]}


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_clients_adapt_a_base_in_an_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import peft
    from transformers import AutoModelForCausalLM

    base = written_base(tmp_path / "brings_base", LLAMA)
    monkeypatch.syspath_prepend(tmp_path)
    run = chimera.train(
        {"name": "huggingface", "task": "causal-lm", "path": "package:brings_base", "lora": LORA},
        {"name": "text-blocks", "path": text(tmp_path), "block": 16},
        strategy={"name": "fed-avg", "local_steps": 2}, engine="simulated", workers=4, batch_size=8, rounds=6,
        evaluate_every=2, optimizer={"name": "adamw", "lr": 0.05}, out=tmp_path / "run",
    )  # fmt: skip
    perplexity = run.history["perplexity"].dropna()
    assert perplexity.iloc[-1] < perplexity.iloc[0]
    assert run.cost.bytes_up == 4 * run.trained.layout.size * 4 * run.cost.rounds
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of transformers, about peft
        plain = peft.PeftModel.from_pretrained(
            AutoModelForCausalLM.from_pretrained(base), run.save(tmp_path / "adapter")
        )
    tokens = torch.from_numpy(PAIR[0])
    with torch.no_grad():
        assert torch.equal(plain.eval()(input_ids=tokens).logits, run.model.eval()(input_ids=tokens).logits)

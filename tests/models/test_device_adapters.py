"""Adapters of a language model on a GPU: the gradients of the host, and runs that learn in each precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import chimera
from chimera.models.compute import Compute
from fake_device import NO_GPU
from language_kit import LLAMA, MARKS, PAIR, made, text

pytestmark = [NO_GPU, *MARKS]
LORA = {"r": 4, "alpha": 8, "targets": "all-linear"}


def adapted(device: str | None, precision: Any = "fp32") -> Any:
    model = made(**{"from": "config", "config": LLAMA, "lora": LORA})
    model.configure(Compute(precision=precision))
    if device:
        model.to(device)
    rng = np.random.default_rng(3)  # new adapters are zero in one of two matrices
    model.load(rng.normal(scale=0.1, size=model.layout.size).astype(np.float32))
    return model


@pytest.mark.parametrize(("precision", "bound"), [("fp32", 1e-3), ("bf16-mixed", 0.1), ("fp16-mixed", 0.02)])
def test_gradients_of_adapters_are_those_of_the_host(precision: str, bound: float) -> None:
    wanted, loss = adapted(None).gradient(PAIR)
    model = adapted("cuda", precision)
    found, other = model.gradient(PAIR)
    assert other == pytest.approx(loss, rel=bound)
    assert np.linalg.norm(found - wanted) < bound * np.linalg.norm(wanted)
    assert {each.device.type for each in model.module.parameters()} == {"cuda"}  # the frozen ones as well


@pytest.mark.long
@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed", "fp16-mixed"])
@pytest.mark.parametrize("engine", ["simulated", "local"])
def test_clients_adapt_a_model_on_one_gpu(engine: str, precision: str, tmp_path: Path) -> None:
    run = chimera.train(
        {"name": "huggingface", "task": "causal-lm", "from": "config", "config": LLAMA, "lora": LORA},
        {"name": "text-blocks", "path": text(tmp_path), "block": 16},
        strategy={"name": "fed-avg", "local_steps": 5},
        engine=engine,
        workers=2,
        batch_size=8,
        rounds=12,
        evaluate_every=1,
        optimizer={"name": "adamw", "lr": 1e-2},
        precision=precision,
        worker_resources={"gpus": 1},
        out=tmp_path / "run",
    )
    losses = run.history["loss"].dropna()
    assert losses.iloc[-1] < losses.iloc[0] - 0.05
    module = run.model.get_base_model() if hasattr(run.model, "get_base_model") else run.model
    assert next(module.parameters()).device == torch.device("cpu")

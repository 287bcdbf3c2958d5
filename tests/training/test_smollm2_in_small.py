"""The promises of `test_smollm2.py` on a Llama of 100,000 parameters, where one local step equals a step on the pooled text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import chimera
from language_kit import MARKS, made, written_base
from training import plain_adapters

pytestmark = MARKS

LLAMA: dict[str, Any] = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 32, "vocab_size": 256,
}  # fmt: skip
LORA: dict[str, Any] = {"r": 8, "alpha": 16, "targets": ["q_proj", "v_proj"]}
CLIENTS, EACH, SEED = 4, 4, 5
TOKENS = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (CLIENTS * EACH, 17)))
POOLED = TOKENS[:, :-1].contiguous(), TOKENS[:, 1:].contiguous()
SGD: dict[str, Any] = {"lr": 0.5, "momentum": 0.9}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return written_base(tmp_path_factory.mktemp("base"), LLAMA)


def plain(base: str, rows: slice, steps: int) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return the adapters before and after steps of a plain loop on all these samples."""
    model = made(path=base, lora=LORA).module
    batch = POOLED[0][rows], POOLED[1][rows]
    before = {name: each.detach().clone() for name, each in plain_adapters.trained(model).items()}
    optimizer = torch.optim.SGD(plain_adapters.trained(model).values(), **SGD)
    for _ in range(steps):
        plain_adapters.step(model, optimizer, batch)
    return before, plain_adapters.trained(model)


def clients(folder: Path, base: str, rounds: int, **options: Any) -> dict[str, torch.Tensor]:
    """Return the adapters of four clients that take one local step a round on all samples of their own."""
    data = chimera.SampleDataset(list(zip(*POOLED, strict=True)))
    run = chimera.train(
        {"name": "huggingface", "task": "causal-lm", "path": base, "lora": LORA}, (data, data), partition="contiguous",
        strategy={"name": "fed-avg", "local_steps": 1}, workers=CLIENTS, batch_size=EACH, rounds=rounds,
        optimizer={"name": "sgd", **SGD}, engine="simulated", evaluate_every=rounds, seed=SEED, out=folder, **options,
    )  # fmt: skip
    return plain_adapters.trained(run.model)


@pytest.mark.parametrize(
    ("options", "tolerance"),
    [({}, 1e-6), ({"privacy": {"clip": 10.0, "secure_aggregation": True}}, 1e-5)],
    ids=["fed-avg", "secure aggregation"],
)
def test_clients_with_one_local_step_equal_a_plain_loop_on_the_pooled_batch(
    tmp_path: Path, base: str, options: dict[str, Any], tolerance: float
) -> None:
    if "privacy" in options:
        pytest.importorskip("cryptography")
    _, wanted = plain(base, slice(None), 6)
    found = clients(tmp_path / "run", base, 6, **options)
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, atol=tolerance, rtol=0)


def test_int8_differs_from_the_pooled_step_by_half_a_level_at_most(tmp_path: Path, base: str) -> None:
    """A level is the largest change in a tensor of a client, divided by 127."""
    before, wanted = plain(base, slice(None), 1)
    levels = dict.fromkeys(wanted, 0.0)
    for client in range(CLIENTS):
        _, own = plain(base, slice(client * EACH, (client + 1) * EACH), 1)
        for name in levels:
            levels[name] += (own[name] - before[name]).abs().max().item() / 127 / CLIENTS
    found = clients(tmp_path / "run", base, 1, codec="int8")
    for name, tensor in wanted.items():
        assert (found[name] - tensor).abs().max().item() <= levels[name] / 2 + 1e-7
    assert any(not torch.equal(found[name], tensor) for name, tensor in wanted.items())

"""Mixed precision on a GPU: gradients are near those of float32, and runs learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import chimera
from chimera.models.compute import Compute
from chimera.models.torch_model import TorchModel
from fake_device import NO_GPU

pytestmark = NO_GPU
PRECISIONS = {"bf16-mixed": 0.05, "fp16-mixed": 0.01}  # and the error of a gradient, relative to the gradient


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Linear(64, 3))


def batch(seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(32, 20)).astype(np.float32), rng.integers(0, 3, 32)


def model(precision: Any, step: Any = None, **options: Any) -> TorchModel:
    made = TorchModel(network, seed=3, step=step)
    made.configure(Compute(precision=precision, **options))
    made.to("cuda")
    return made


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_gradient_is_near_that_of_float32(precision: str, accumulate: int) -> None:
    wanted, loss = model("fp32", accumulate=accumulate).gradient(batch())
    found, other = model(precision, accumulate=accumulate).gradient(batch())
    assert found.dtype == np.float32
    assert other == pytest.approx(loss, rel=0.02)
    difference = np.linalg.norm(found - wanted) / np.linalg.norm(wanted)
    assert 0 < difference < PRECISIONS[precision]


def test_the_step_computes_in_the_type_of_the_precision() -> None:
    seen = []

    def step(module: nn.Module, batch: Any) -> Any:
        outputs = module(batch[0])
        seen.append(str(outputs.dtype))
        return nn.functional.cross_entropy(outputs.float(), batch[1])

    for precision in ("fp32", *PRECISIONS):
        model(precision, step).gradient(batch())
    assert seen == ["torch.float32", "torch.bfloat16", "torch.float16"]


def test_a_scale_that_is_too_large_is_halved_and_the_batch_counts_once() -> None:
    def steep(module: nn.Module, batch: Any) -> Any:
        return nn.functional.cross_entropy(module(batch[0]) * 8, batch[1])

    scaled = model("fp16-mixed", steep)
    scaled.restore_loss_scale(np.array([2.0**30, 0, 2.0**30]))
    found, _ = scaled.gradient(batch())
    wanted, _ = model("fp32", steep).gradient(batch())
    assert np.linalg.norm(found - wanted) < 0.02 * np.linalg.norm(wanted)
    state = scaled.loss_scale()
    assert state is not None
    assert 1 < state[0] < 2.0**30
    assert scaled.module.state_dict()["1.num_batches_tracked"] == 1


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["all-reduce", "parameter-server"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_two_processes_on_one_gpu_learn(precision: str, strategy: str, tmp_path: Path) -> None:
    run = chimera.train(
        "mlp",
        "digits",
        engine="local",
        workers=2,
        batch_size=32,
        rounds=80,
        strategy=strategy,
        optimizer={"name": "adam", "lr": 5e-3},
        precision=precision,
        worker_resources={"gpus": 1},
        out=tmp_path / "run",
    )
    assert run.cost.rounds == 80
    assert run.metrics["accuracy"] > 0.9

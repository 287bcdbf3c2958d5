"""Hooks of `DistributedDataParallel` on one GPU: two processes over gloo, and one over nccl, which accepts one rank per GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import chimera
from chimera.core.engine import Engine
from codecs_kit import SETUPS
from ddp.ddp_kit import group, train
from fake_device import NO_GPU

pytestmark = NO_GPU
CODECS = ("fp16", "int8", "qsgd", "sign", "top-k sampled", "powersgd")


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with chimera.engine("local") as engine:
        yield engine


@pytest.fixture(scope="module", params=[("gloo", 2), ("nccl", 1)], ids=["two over gloo", "one over nccl"])
def trainers(engine: Engine, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    backend, size = request.param
    started = group(engine, size, tmp_path_factory.mktemp("ddp"), backend, "cuda")
    train(engine, started, "int8")  # loads torch and compiled kernels
    return started


@pytest.mark.parametrize("cap_mb", [25, 0.001], ids=["one bucket", "many buckets"])
def test_without_loss_a_hook_gives_the_weights_of_plain_ddp(engine: Engine, trainers: list[Any], cap_mb: float) -> None:
    plain, found = (train(engine, trainers, codec, cap_mb=cap_mb) for codec in (None, "identity"))
    for own, without in zip(found, plain, strict=True):
        np.testing.assert_allclose(own["weights"], without["weights"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("setup", CODECS)
def test_all_processes_have_the_same_bits_and_lose_nothing(engine: Engine, trainers: list[Any], setup: str) -> None:
    told = train(engine, trainers, {**SETUPS[setup], "error_feedback": True}, cap_mb=0.001)
    assert all(np.array_equal(each["weights"], told[0]["weights"]) for each in told)
    kept = [state for each in told for state in each["kept"].values()]
    memories = sum(float(array.sum()) for state in kept for name, array in state.items() if name.endswith("memory"))
    gradients = sum(each["own"].sum() for each in told)
    assert len(told) * told[0]["mean"].sum() + memories == pytest.approx(gradients, abs=1e-3)


def test_a_state_that_was_saved_continues(engine: Engine, trainers: list[Any]) -> None:
    codec = {"name": "top-k", "ratio": 0.1, "error_feedback": True}
    told = train(engine, trainers, codec, split=4)
    assert all(np.array_equal(each["weights"], told[0]["weights"]) for each in told)
    assert told[0]["steps"] == 6

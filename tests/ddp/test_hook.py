"""Codecs inside `DistributedDataParallel`: equal bits in all processes, nothing lost, and PowerSGD as that of torch."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chimera
from chimera.core.engine import Engine
from chimera.core.errors import ChimeraError, ConfigurationError
from codecs_kit import SETUPS
from ddp.ddp_kit import group, train

SMALL_MB = 0.001  # each tensor is in a bucket of its own
EXACT = {"name": "top-k", "ratio": 0.1, "error_feedback": True}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with chimera.engine("local") as engine:
        yield engine


@pytest.fixture(scope="module")
def pair(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    trainers = group(engine, 2, tmp_path_factory.mktemp("ddp"))
    train(engine, trainers, EXACT)  # loads torch and compiled kernels
    return trainers


@pytest.mark.parametrize("cap_mb", [25, SMALL_MB], ids=["one bucket", "many buckets"])
def test_without_loss_a_hook_gives_the_bits_of_plain_ddp(engine: Engine, pair: list[Any], cap_mb: float) -> None:
    plain = train(engine, pair, cap_mb=cap_mb)
    for codec in ("identity", {"name": "identity", "lossless": True}):
        for found, without in zip(train(engine, pair, codec, cap_mb=cap_mb), plain, strict=True):
            assert np.array_equal(found["weights"], without["weights"])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [name for name in SETUPS if "delta" not in name and name != "all of them"])
def test_all_processes_have_the_same_bits_with_every_codec(engine: Engine, pair: list[Any], name: str) -> None:
    told = train(engine, pair, SETUPS[name], cap_mb=SMALL_MB, rate=0.01)
    assert all(each["finite"] == [True] * 6 for each in told)
    assert np.array_equal(told[0]["weights"], told[1]["weights"])


@pytest.mark.takes("three processes start")
def test_three_processes_have_the_mean_of_their_messages(engine: Engine, tmp_path: Path) -> None:
    trainers = group(engine, 3, tmp_path)
    plain, half, sparse = (train(engine, trainers, codec, cap_mb=SMALL_MB) for codec in (None, "cast", EXACT))
    for told in (half, sparse):
        assert all(np.array_equal(told[0]["weights"], each["weights"]) for each in told)
    np.testing.assert_allclose(half[0]["weights"], plain[0]["weights"], atol=2e-4)


@pytest.mark.parametrize("cap_mb", [25, SMALL_MB], ids=["one bucket", "many buckets"])
@pytest.mark.parametrize("codec", [EXACT, {"name": "powersgd"}, {"name": "sign", "error_feedback": True}], ids=str)
def test_means_and_memories_add_up_to_the_gradients(
    engine: Engine, pair: list[Any], codec: dict[str, Any], cap_mb: float
) -> None:
    told = train(engine, pair, codec, cap_mb=cap_mb)
    assert_nothing_is_lost(told)


def assert_nothing_is_lost(told: list[dict[str, Any]]) -> None:
    kept = [state for each in told for state in each["kept"].values()]
    memories = sum(float(array.sum()) for state in kept for name, array in state.items() if name.endswith("memory"))
    gradients = sum(each["own"].sum() for each in told)
    assert 2 * told[0]["mean"].sum() + memories == pytest.approx(gradients, abs=1e-4)
    assert abs(memories) > 1e-3


def test_powersgd_is_that_of_torch(engine: Engine, pair: list[Any]) -> None:
    """Torch draws another first Q, so that Chimera's continues from torch's."""
    theirs, ours = (train(engine, pair, codec, steps=20, change=8) for codec in ("torch", "taken over"))
    np.testing.assert_allclose(ours[0]["weights"], theirs[0]["weights"], atol=1e-5)
    plain = train(engine, pair, steps=20)
    assert np.abs(ours[0]["weights"] - plain[0]["weights"]).max() > 1e-3


def test_a_gradient_that_is_not_finite_is_so_everywhere_and_costs_one_step(engine: Engine, pair: list[Any]) -> None:
    for codec in (EXACT, "powersgd", "int8"):
        told = train(engine, pair, codec, poison=3)
        assert [each["finite"] for each in told] == [[True, True, True, False, True, True]] * 2
        assert np.array_equal(told[0]["weights"], told[1]["weights"])


@pytest.mark.parametrize("cap_mb", [25, SMALL_MB], ids=["one bucket", "many buckets"])
def test_a_state_that_was_saved_loses_nothing(engine: Engine, pair: list[Any], cap_mb: float) -> None:
    for codec in (EXACT, {"name": "powersgd"}):
        whole, parts = train(engine, pair, codec, cap_mb=cap_mb), train(engine, pair, codec, cap_mb=cap_mb, split=4)
        assert (whole[0]["steps"], whole[0]["plain"]) == (parts[0]["steps"], parts[0]["plain"])
        assert whole[0]["sent"] < parts[0]["sent"] < parts[0]["plain"]  # a step was sent whole
        assert_nothing_is_lost(parts)


def test_accumulation_and_unused_parameters_work(engine: Engine, pair: list[Any]) -> None:
    for options in ({"accumulate": 2}, {"unused": True}):
        plain, told = train(engine, pair, **options), train(engine, pair, "identity", **options)
        assert np.array_equal(told[0]["weights"], plain[0]["weights"])
        coded = train(engine, pair, EXACT, **options)
        assert np.array_equal(coded[0]["weights"], coded[1]["weights"])


def test_bytes_are_those_of_messages(engine: Engine, pair: list[Any]) -> None:
    told = train(engine, pair, "identity", hidden=200)
    assert told[0]["sent"] == told[0]["plain"]
    one, more = (train(engine, pair, {"name": "top-k", "ratio": 0.01}, hidden=200, steps=steps)[0] for steps in (4, 8))
    share = (more["sent"] - one["sent"]) / (more["plain"] - one["plain"])
    assert 0.005 < share < 0.02


@pytest.mark.takes("a third process starts, and PyTorch's groups find the end of a connection")
def test_the_death_of_a_process_is_an_error_in_the_others(engine: Engine, tmp_path: Path) -> None:
    trainers = group(engine, 2, tmp_path)
    train(engine, trainers, EXACT)
    survivor = trainers[0].train(EXACT, steps=100_000)
    os.kill(engine.get(trainers[1].pid()), signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"(?i)connection|reset|closed"):
        engine.get(survivor, timeout_s=60)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["delta"], "for weights that a server sends"), (["topk"], "top-k"), ([{"ratio": 0.1}], "name")],
)
def test_mistakes_are_errors_before_training(arguments: list[Any], said: str) -> None:
    with pytest.raises(ChimeraError, match=said):
        chimera.ddp.hook(*arguments)


def test_a_state_of_another_codec_is_refused() -> None:
    kept = chimera.ddp.hook("int8")[0].state_dict()
    with pytest.raises(ConfigurationError, match="state of the codec"):
        chimera.ddp.hook("qsgd")[0].load_state_dict(kept)

"""With any n - s of n workers a gradient code has the exact gradient, at the pace of the fastest."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import chimera
from chimera.core.errors import ConfigurationError
from chimera.strategies.codes import CODES, cyclic, decoding

Fit = Callable[..., chimera.Run]
WORKERS = 5


@pytest.fixture
def fit(tmp_path: Path) -> Fit:
    folders = itertools.count()

    def fit(strategy: Any, **options: Any) -> chimera.Run:
        named = {"name": "gradient-coding", **strategy} if isinstance(strategy, dict) else strategy
        settings: dict[str, Any] = {
            "engine": "simulated", "workers": WORKERS, "batch_size": 8, "optimizer": {"name": "adam", "lr": 0.01},
            "rounds": 50, "evaluate_every": 25, "seed": 1, "out": tmp_path / f"{next(folders)}",
        }  # fmt: skip
        model = {"name": "mlp", "hidden": [16], "dropout": 0.2}
        return chimera.train(model, "digits", strategy=named, **{**settings, **options})

    return fit


def parameters(run: chimera.Run) -> np.ndarray:
    return run.trained.parameters().copy()


@st.composite
def codes(draw: st.DrawFn) -> tuple[np.ndarray, int, list[int]]:
    name = draw(st.sampled_from(sorted(CODES)))
    stragglers = draw(st.integers(0, 4))
    groups = draw(st.integers(1, 3))
    workers = groups * (stragglers + 1) if name == "repetition" else stragglers + groups
    missing = draw(st.sets(st.integers(0, workers - 1), max_size=stragglers))
    return CODES[name](workers, stragglers), stragglers, [i for i in range(workers) if i not in missing]


@given(codes())
def test_any_that_are_enough_have_every_block_once(drawn: tuple[np.ndarray, int, list[int]]) -> None:
    code, stragglers, there = drawn
    assert [np.flatnonzero(row).size for row in code] == [stragglers + 1] * len(code)
    assert code.diagonal().all()
    shares, off = decoding(code, there)
    assert off == 0
    np.testing.assert_allclose(shares @ code[there], 1, atol=1e-7)


@given(st.integers(2, 9), st.data())
def test_fewer_than_enough_come_as_near_as_can_be(workers: int, data: st.DataObject) -> None:
    code = cyclic(workers, 1)
    there = sorted(data.draw(st.sets(st.integers(0, workers - 1), min_size=1, max_size=max(workers - 2, 1))))
    shares, off = decoding(code, there)
    assert off == pytest.approx(np.sqrt(np.mean((shares @ code[there] - 1) ** 2)), abs=1e-8)
    other = shares + np.random.default_rng(0).normal(size=len(there)) * 0.1
    assert np.sqrt(np.mean((other @ code[there] - 1) ** 2)) > off


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stragglers": 3, "shards": 2},
        {"stragglers": 0},
        {"stragglers": 4},
        {"code": "repetition", "stragglers": 4},
        {"code": "repetition", "stragglers": 0},
    ],
    ids=str,
)
@pytest.mark.parametrize("spread", [0.0, 2.0])
def test_whoever_is_late_the_weights_are_those_of_all(fit: Fit, options: dict[str, Any], spread: float) -> None:
    engine = {"name": "simulated", "compute": {"straggler_spread": spread}}
    run = fit(options, engine=engine)
    np.testing.assert_allclose(parameters(run), parameters(fit("parameter-server")), atol=2e-6)
    assert run.figures["coding_error"] == 0


@pytest.mark.parametrize("engine", ["local", pytest.param("ray", marks=pytest.mark.long)])
def test_on_processes_the_weights_are_those_of_all(fit: Fit, engine: str) -> None:
    np.testing.assert_allclose(parameters(fit({}, engine=engine)), parameters(fit("parameter-server")), atol=2e-6)


def test_with_s_of_n_slow_an_epoch_takes_the_time_of_the_fastest(fit: Fit) -> None:
    engine = {"name": "simulated", "compute": {"seconds_per_sample": 1e-2}}
    faults = ["slow worker 1 by 10 at step 0", "slow worker 3 by 10 at step 0"]
    epoch: dict[str, Any] = {"rounds": 4 * 36, "evaluate_every": 4 * 36, "engine": engine}
    alone, slowed = fit({"stragglers": 2}, **epoch), fit({"stragglers": 2}, **epoch, faults=faults)
    np.testing.assert_allclose(parameters(slowed), parameters(alone), atol=2e-6)
    assert slowed.cost.seconds < 1.05 * alone.cost.seconds
    assert fit("parameter-server", **epoch, faults=faults).cost.seconds > 2.5 * slowed.cost.seconds


def test_with_a_time_limit_too_few_make_the_best_of_it(fit: Fit) -> None:
    engine = {"name": "simulated", "compute": {"seconds_per_sample": 1e-2}}
    faults = [f"slow worker {rank} by 10 at step 0" for rank in (0, 2)]
    run = fit({"timeout_s": 0.3}, engine=engine, faults=faults, rounds=300)
    assert 0 < run.figures["coding_error"] < 1
    assert run.metrics["accuracy"] > 0.85


@pytest.mark.parametrize("engine", ["simulated", "local"])
def test_a_death_changes_no_weight(fit: Fit, engine: str) -> None:
    run = fit({}, engine=engine, faults=["kill worker 2 at step 20"])
    assert "worker respawned" in [event.event for event in run.events]
    np.testing.assert_allclose(parameters(run), parameters(fit("parameter-server")), atol=2e-6)


@pytest.mark.parametrize(
    "codec", ["cast", "int8", {"name": "qsgd", "levels": 127}, {"name": "top-k", "ratio": 0.2}], ids=str
)
def test_codecs_pack_combinations_too(fit: Fit, codec: Any) -> None:
    run = fit({"stragglers": 1}, codec=codec, rounds=150)
    assert run.metrics["accuracy"] > 0.85
    assert run.cost.bits_per_element_up < 17


@pytest.mark.parametrize(
    ("strategy", "options", "why"),
    [
        ({"stragglers": -1}, {}, "stragglers must be at least 0"),
        ({"code": "repetition"}, {}, "5 workers cannot be parted so: choose 'cyclic'"),
        ({"timeout_s": 0}, {}, "timeout_s must be above 0"),
        ({"shards": 0}, {}, "shards must be at least 1"),
    ],
    ids=str,
)
def test_mistakes_are_told_in_one_line(fit: Fit, strategy: Any, options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as caught:
        fit(strategy, **options)
    assert "\n" not in str(caught.value)

"""Tests of traffic in both directions: it is measured, and uplink and downlink have separate codecs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import chimera
from chimera.core.errors import ConfigurationError


def fit(folder: Path, codec: Any, **options: Any) -> Any:
    given = {"engine": "simulated", "rounds": 20, "optimizer": {"name": "sgd", "lr": 0.1}, "out": folder, **options}
    return chimera.train("mlp", "digits", codec=codec, **given)


@pytest.mark.parametrize("strategy", ["parameter-server", {"name": "parameter-server", "shards": 3}, "fed-buff"])
def test_without_a_codec_an_element_takes_32_bits_in_both_directions(tmp_path: Path, strategy: Any) -> None:
    run = fit(tmp_path / "run", "identity", strategy=strategy)
    assert run.cost.bits_per_element_up == run.cost.bits_per_element_down == 32
    assert run.cost.compression_ratio == 1
    size = run.trained.layout.size
    assert run.cost.elements_up % size == run.cost.elements_down % size == 0


def test_sent_bytes_equal_the_bytes_counted_in_the_trace(tmp_path: Path) -> None:
    cost = fit(tmp_path / "run", "int8", evaluate_every=20).cost
    assert cost.packed_up == cost.bytes_up
    assert cost.packed_down == cost.bytes_down
    assert 8 < cost.bits_per_element_up < 8.2


def test_a_single_worker_sends_nothing(tmp_path: Path) -> None:
    run = fit(tmp_path / "run", "identity", strategy="single-worker")
    assert run.cost.bits_per_element_up is run.cost.bits_per_element_down is run.cost.compression_ratio is None
    assert "bits_per_element_up" not in run.summary()


@pytest.mark.parametrize("every", [1, 20], ids="checkpoints every {}".format)
def test_uplink_and_downlink_have_separate_codecs(tmp_path: Path, every: int) -> None:
    options = {"evaluate_every": every, "workers": 4}
    cast = fit(tmp_path / "cast", {"name": "int8", "downlink": {"name": "cast", "to": "bf16"}}, **options)
    plain = fit(tmp_path / "plain", {"name": "int8"}, **options)
    assert cast.cost.packed_up == plain.cost.packed_up
    assert cast.cost.bits_per_element_down == pytest.approx(16, rel=0.01)
    assert plain.cost.bits_per_element_down == 32
    assert cast.metrics["loss"] == pytest.approx(plain.metrics["loss"], rel=0.02)
    assert cast.summary()["bits_per_element_down"] == cast.cost.bits_per_element_down


@pytest.mark.parametrize("downlink", [3, {"bits": 4}, "zip", {"name": "int8", "bit": 4}])
def test_an_invalid_downlink_raises_a_one_line_error(tmp_path: Path, downlink: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        fit(tmp_path / "run", {"name": "int8", "downlink": downlink})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "codec",
    [
        {"name": "qsgd", "downlink": {"name": "int8", "stochastic": True}},
        {"name": "top-k", "ratio": 0.05, "error_feedback": True},
        {"name": "powersgd", "rank": 2},
        {"name": "dgc", "ratio": 0.05, "warm_up": 20},
        {"name": "identity", "downlink": {"name": "top-k", "ratio": 0.2, "error_feedback": True}},
        {"name": "identity", "downlink": {"name": "delta", "codec": "terngrad", "rate": 0.2}},
        {"name": "identity", "downlink": {"name": "dgc", "ratio": 0.2}},
    ],
    ids=lambda codec: " ".join((codec["name"], *([codec["downlink"]["name"]] if "downlink" in codec else []))),
)
def test_a_resumed_run_sends_the_same_bytes(tmp_path: Path, codec: Any) -> None:
    options = {"rounds": 24, "checkpoint_every": 8, "evaluate_every": 8}
    whole = fit(tmp_path / "whole", codec, **options)
    fit(tmp_path / "cut", codec, **{**options, "rounds": 16})
    cut = fit(tmp_path / "cut", codec, **options, resume=True)
    assert cut.trained.parameters().tobytes() == whole.trained.parameters().tobytes()
    assert cut.cost.packed_up == whole.cost.packed_up

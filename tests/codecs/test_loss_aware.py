"""Tests of `loss-aware`: scales minimize the weighted error, and the curvature comes from the server's optimizer."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import load_file

import chimera
from chimera.codecs.codec import CODECS, decode
from chimera.codecs.loss_aware import best_scale
from chimera.core.errors import CodecError
from chimera.core.parameters import Flat, Layout
from chimera.data.split import DATASETS
from chimera.training.optimizers.optimizer import OptimizerSettings
from chimera.training.server.parameter_shard import ParameterShard
from codecs_kit import hard_vectors, layout_of

NORMAL = hard_vectors()["normal"]
CURVED = np.random.default_rng(1).random(NORMAL.size).astype(np.float32) ** 4


def decoded(options: dict[str, Any], w: Flat, d: Flat | None = None, tensors: int = 1) -> Flat:
    codec = CODECS.create("loss-aware", options)
    codec.use_curvature(lambda: d)
    return decode(codec.encode(w, layout_of(w.size, tensors)), w.size).copy()


def loss(found: Flat, w: Flat, d: Flat | None = None) -> float:
    return float(np.sum((1 if d is None else d.astype(np.float64)) * (found.astype(np.float64) - w) ** 2))


FLOATS = st.floats(-4, 4, width=32)


@pytest.mark.long
@given(data=st.data(), size=st.integers(1, 7))
@settings(max_examples=80, deadline=None)
def test_the_exact_scale_is_optimal(data: st.DataObject, size: int) -> None:
    w = data.draw(hnp.arrays(np.float32, size, elements=FLOATS))
    d = data.draw(hnp.arrays(np.float32, size, elements=st.floats(0.0625, 4, width=32)))
    best = loss(np.zeros_like(w), w, d)
    for signs in itertools.product((-1, 0, 1), repeat=size):
        b = np.array(signs, np.float64)
        if b.any():
            a = float(np.sum(d * b * w) / np.sum(d * b * b))
            best = min(best, loss((a * b).astype(np.float32), w, d))
    assert loss(decoded({"exact": True}, w, d), w, d) <= best * (1 + 1e-5) + 1e-9


@pytest.mark.parametrize("d", [None, CURVED], ids=["plain", "curved"])
def test_alternating_minimization_is_close_to_the_exact_scale(d: Flat | None) -> None:
    turns, exact = loss(decoded({}, NORMAL, d), NORMAL, d), loss(decoded({"exact": True}, NORMAL, d), NORMAL, d)
    assert exact <= turns * (1 + 1e-6)
    assert turns <= exact * 1.01


@pytest.mark.parametrize(
    "options", [{"bits": 3}, {"bits": 4}, {"bits": 4, "levels": "logarithmic"}, {"bits": 8}], ids=str
)
def test_no_other_scale_is_much_better(options: dict[str, Any]) -> None:
    codec = CODECS.create("loss-aware", options)
    codec.use_curvature(lambda: CURVED)
    encoded = codec.encode(NORMAL, layout_of(NORMAL.size, 1))
    levels = np.concatenate([encoded.arrays[2], -encoded.arrays[2]])
    found = loss(decode(encoded, NORMAL.size), NORMAL, CURVED)
    for factor in (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 1.02, 1.05, 1.1, 1.2, 1.4, 2):
        values = np.sort(levels * encoded.arrays[1][0] * np.float32(factor))
        nearest = values[np.searchsorted((values[1:] + values[:-1]) / 2, NORMAL)]
        assert found < 1.02 * loss(nearest, NORMAL, CURVED)


@pytest.mark.parametrize("options", [{}, {"exact": True}, {"bits": 3}, {"bits": 4, "levels": "logarithmic"}], ids=str)
def test_curvature_lowers_the_weighted_error(options: dict[str, Any]) -> None:
    d = np.where(np.abs(NORMAL) > 2, 1, 1e-3).astype(np.float32)  # only the large ones matter
    assert loss(decoded(options, NORMAL, d), NORMAL, d) < 0.9 * loss(decoded(options, NORMAL), NORMAL, d)


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_an_invalid_curvature_is_ignored(bad: float) -> None:
    d = np.full_like(NORMAL, bad)
    assert (decoded({}, NORMAL, d) == decoded({}, NORMAL)).all()
    with pytest.raises(CodecError, match="curvature"):
        decoded({}, NORMAL, d[:-1])


def test_wrappers_pass_the_curvature_to_inner_codecs_by_layer() -> None:
    own = CODECS.create("loss-aware", {})
    own.use_curvature(lambda: CURVED)
    expected = own.encode(NORMAL, layout_of(NORMAL.size)).arrays[1].tolist()
    for table in (
        {"name": "layer-wise", "default": "loss-aware"},
        {"name": "layer-wise", "layers": {"t1": "identity"}, "default": "loss-aware"},
    ):
        codec = CODECS.of(table)
        codec.use_curvature(lambda: CURVED)
        scales = [a.tolist() for a in codec.encode(NORMAL, layout_of(NORMAL.size)).arrays if a.size in (1, 3)]
        assert expected[0] in [each[0] for each in scales]
    for table in (
        {"name": "loss-aware", "error_feedback": True},
        {"name": "adaptive", "codecs": ["loss-aware", "loss-aware"]},
    ):
        codec = CODECS.of(table)
        codec.use_curvature(lambda: CURVED)
        assert codec.encode(NORMAL, layout_of(NORMAL.size)).arrays[1].tolist() == expected


@pytest.mark.parametrize("name", ["adam", "adamw", "rmsprop", "sgd"])
def test_the_server_passes_the_second_moment_of_its_optimizer(name: str) -> None:
    rng = np.random.default_rng(0)
    size = 300
    server = ParameterShard(
        rng.standard_normal(size).astype(np.float32),
        Layout(("w",), ((size,),)),
        optimizer=OptimizerSettings(name, {"lr": 0.01}),
        codec=("loss-aware", {"exact": True}),
    )
    for _ in range(3):
        gradient = rng.standard_normal(size).astype(np.float32) ** 3
        encoded, _ = server.update(CODECS.create("identity").encode(gradient, Layout(("w",), ((size,),))))
    state = server.state()
    moments = [value for key, value in state["optimizer"].items() if key.endswith(("exp_avg_sq", "square_avg"))]
    assert len(moments) == (name != "sgd")
    d = np.sqrt(moments[0]) if moments else None
    assert encoded.arrays[1][0] == np.float32(best_scale(state["weights"], d))
    if d is not None:
        assert encoded.arrays[1][0] != np.float32(best_scale(state["weights"], None))
    assert not np.isin(state["weights"], decode(encoded, size)).all()  # the server keeps its own in full


LAYERED = {"default": "loss-aware", "layers": {"*.bias": {"name": "int8", "stochastic": True}}}
DOWN: dict[str, dict[str, Any]] = {
    "plain": {"name": "loss-aware"},
    "lossless": {"name": "loss-aware", "lossless": True},
    "layer-wise": {"name": "layer-wise", **LAYERED},
}


@pytest.mark.parametrize("downlink", DOWN.values(), ids=DOWN)
def test_the_quantized_network_is_evaluated_and_saved(tmp_path: Path, downlink: dict[str, Any]) -> None:
    data = DATASETS.create("digits")
    network = torch.nn.Sequential(torch.nn.Linear(64, 16), torch.nn.Tanh(), torch.nn.Linear(16, 10))
    run = chimera.train(
        network,
        data,
        strategy="parameter-server",
        engine="simulated",
        rounds=12,
        evaluate_every=12,
        optimizer="adam",
        codec={"name": "identity", "downlink": downlink},
        out=tmp_path / "run",
    )
    saved = load_file(run.run_dir / "weights.safetensors")
    weights = [tensor for name, tensor in saved.items() if name.endswith("weight")]
    assert [len(np.unique(np.abs(tensor))) for tensor in weights] == [2, 2]  # 0 and the scale
    network.load_state_dict({name: torch.from_numpy(tensor) for name, tensor in saved.items()})
    found = network(torch.tensor(data.test.inputs)).argmax(1).numpy()
    assert np.mean(found == data.test.targets) == pytest.approx(run.metrics["accuracy"])


def test_reading_the_model_changes_no_message() -> None:
    rng = np.random.default_rng(0)
    layout = Layout(("weight", "a.bias"), ((200,), (100,)))
    gradients = [CODECS.create("identity").encode(rng.random(300, np.float32), layout) for _ in range(3)]

    def sent(*, look: bool) -> list[Flat]:
        server = ParameterShard(
            np.ones(300, np.float32), layout, optimizer=OptimizerSettings("sgd"), codec=("layer-wise", LAYERED)
        )
        messages = []
        for gradient in gradients:
            if look:
                server.model()
            messages.append(decode(server.update(gradient)[0], 300).copy())
        return messages

    np.testing.assert_array_equal(sent(look=True), sent(look=False))

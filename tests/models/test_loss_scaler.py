"""The scale of the loss in float16: gradients are those without it, and a scale that is too large is only halved."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import chimera
from chimera.core import call
from chimera.core.errors import ConfigurationError
from chimera.models.backward import BackwardPass
from chimera.models.compute import Compute
from chimera.models.flat_module import FlatModule
from chimera.models.forward import ForwardPass
from chimera.models.loss_scaler import LossScaler
from chimera.models.losses import make_loss
from chimera.models.torch_model import TorchModel

X = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
Y = np.arange(8) % 3


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, 3))


def in_half(factor: float) -> Any:
    """Return a step whose gradients pass through float16, where they are infinite above 65504."""

    def step(module: nn.Module, batch: Any) -> Any:
        outputs = module(batch[0])
        return nn.functional.cross_entropy((outputs * factor).half().float() / factor, batch[1])

    return step


def backward(factor: float, scale: float, **options: Any) -> tuple[FlatModule, BackwardPass, LossScaler]:
    """Return a backward pass with a scaler on the CPU, where users cannot have one."""
    flat = FlatModule(network(), call.empty)
    forward = ForwardPass(flat, make_loss("cross-entropy"), in_half(factor), None, integer_inputs=False)
    forward.compute = Compute(precision="fp16-mixed", **options)
    scaler = LossScaler("cpu", scale)
    return flat, BackwardPass(flat, forward, scaler), scaler


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_scale_that_is_too_large_is_halved_and_the_batch_computed_again(accumulate: int) -> None:
    wanted, first, _ = backward(1.0, 1.0, accumulate=accumulate)
    flat, again, scaler = backward(1.0, 2.0**22, accumulate=accumulate)
    for computed in (first, again):
        computed.reseed(5)
    assert first((X, Y)) == again((X, Y))  # the same dropout
    assert scaler.value < 2.0**20
    np.testing.assert_allclose(flat.collect_gradient(), wanted.collect_gradient(), rtol=2e-3, atol=1e-5)
    state, expected = flat.module.state_dict(), wanted.module.state_dict()
    for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):  # the batch counted once
        torch.testing.assert_close(state[name], expected[name])


def test_small_gradients_are_kept_that_would_be_zero_without_a_scale() -> None:
    def tiny(module: nn.Module, batch: Any) -> Any:
        return (module(batch[0]).half().float() * 1e-9).mean()

    sizes = []
    for scale in (1.0, 2.0**16):
        flat, computed, _ = backward(1.0, scale)
        computed._forward.step = tiny
        computed((X, Y))
        sizes.append(np.abs(flat.collect_gradient()).sum())
    assert sizes[0] == 0.0
    assert sizes[1] > 0.0


def test_nan_is_not_the_fault_of_the_scale() -> None:
    flat, computed, scaler = backward(1.0, 2.0**10)
    computed((X, Y))
    for _ in range(3):
        assert np.isnan(computed((np.full_like(X, np.nan), Y)))
        assert not np.isfinite(flat.collect_gradient()).all()
    assert scaler.value == 2.0**10


def test_a_gradient_that_is_infinite_at_any_scale_is_returned_so_that_the_run_rejects_it() -> None:
    flat, computed, scaler = backward(1.0, 2.0**4)
    computed._forward.step = lambda module, batch: (0 * module(batch[0])).sqrt().sum()
    assert np.isfinite(computed((X, Y)))
    assert not np.isfinite(flat.collect_gradient()).all()
    assert scaler.value == 2.0**4


def test_the_cpu_is_refused_in_one_line(tmp_path: Any) -> None:
    message = 'precision "fp16-mixed" needs a GPU.*on the CPU, precision = "bf16-mixed"'
    with pytest.raises(ConfigurationError, match=message):
        chimera.Trainer("mlp", "digits", precision="fp16-mixed", out=tmp_path / "run")
    model = TorchModel(network())
    model.configure(Compute(precision="fp16-mixed"))
    with pytest.raises(ConfigurationError, match=message):
        model.gradient((X, Y))
    assert model.evaluate((X, Y))["loss"] > 0  # as a driver without a GPU evaluates, in float32


@pytest.mark.parametrize(
    ("options", "ignored"),
    [
        ({"precision": "fp16-mixed"}, "precision"),
        ({"precision": "bf16-mixed", "compile": True}, "precision and compile"),
    ],
)
def test_parts_of_a_model_refuse_what_they_would_ignore(options: Any, ignored: str) -> None:
    model = TorchModel(network())
    model.configure(Compute(**options))
    with pytest.raises(ConfigurationError, match=f"computes in float32, without compilation: leave out {ignored}$"):
        model.part_of(nn.Sequential(nn.Linear(4, 3)))


def test_a_run_on_gpus_accepts_it(tmp_path: Any) -> None:
    resources = {"gpus": 1}
    chimera.Trainer("mlp", "digits", precision="fp16-mixed", worker_resources=resources, out=tmp_path / "run")


def test_a_restored_scale_continues_to_the_bit() -> None:
    """The scale was halved before the state was taken; gradients and scales after it are the same."""
    whole, first, scaler = backward(1.0, 2.0**22)
    whole_step = (X, Y)
    first.reseed(1)
    first(whole_step)
    state = first.loss_scale()
    assert state is not None
    assert state[0] == scaler.value < 2.0**22
    flat, resumed, other = backward(1.0, 2.0**16)
    resumed.restore_loss_scale(state)
    for step in range(3):
        found = []
        for side, computed in ((whole, first), (flat, resumed)):
            computed.reseed(step)
            found.append((computed(whole_step), side.collect_gradient().copy()))
        assert found[0][0] == found[1][0]
        np.testing.assert_array_equal(found[0][1], found[1][1])
        np.testing.assert_array_equal(scaler.state(), other.state())


def test_the_local_state_of_a_worker_holds_the_scale() -> None:
    from chimera.data.order import ShardOrder
    from chimera.data.split import DATASETS
    from chimera.training.experiment.resolve import model_of
    from chimera.training.optimizers.optimizer import OptimizerSettings
    from chimera.training.worker.learner import Learner

    data = DATASETS.create("digits").train

    def worker() -> tuple[Learner, Any]:
        model: Any = model_of({"name": "mlp", "hidden": [4]}, data, 0)
        order = ShardOrder(np.arange(64), batch_size=8, seed=0, rank=0)
        return Learner(0, model, data, order, optimizer=OptimizerSettings("sgd", {"lr": 0.1})), model

    (saved, model), (resumed, other) = worker(), worker()
    assert "loss scale" not in saved.local_state()
    model.restore_loss_scale(np.array([2.0**7, 5.0, 2.0**8]))
    resumed.restore_local(saved.local_state())
    np.testing.assert_array_equal(other.loss_scale(), [2.0**7, 5.0, 2.0**8])

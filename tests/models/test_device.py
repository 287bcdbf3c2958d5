"""A model on a device computes what it computes where it was, with its vectors on the host or view it.

Where there is no GPU, `apart` plays one.
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import SGDClassifier
from torch import nn

from chimera.core import device as crossing
from chimera.core.errors import ConfigurationError
from chimera.models.device import GPU, check_movable, device_view, move
from chimera.models.sklearn_model import SklearnModel
from chimera.models.torch_model import TorchModel
from fake_device import DEVICES, NAME

pytestmark = [pytest.mark.parametrize("device", DEVICES), pytest.mark.usefixtures("fake_device")]


def network() -> nn.Module:
    frozen = nn.Linear(5, 5).requires_grad_(False)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), frozen, nn.Tanh(), nn.Linear(5, 3))


def batch(n: int = 12, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 6)).astype(np.float32), rng.integers(0, 3, n)


def pair(device: str, **options: Any) -> tuple[TorchModel, TorchModel]:
    """Return two equal models, the second of them on ``device``."""
    here, there = (TorchModel(network, seed=3, **options) for _ in range(2))
    there.to(device)
    return here, there


def assert_close(actual: Any, expected: Any, device: str) -> None:
    if device == NAME:
        np.testing.assert_array_equal(actual, expected)
    else:
        np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("loss", ["cross-entropy", nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))], ids=str)
def test_steps_on_the_host_vector_equal_those_of_a_model_that_was_not_moved(device: str, loss: Any) -> None:
    models = pair(device, loss=loss, task="classification")
    for step in range(4):
        results = [model.gradient(batch(seed=step)) for model in models]
        for model, (gradient, _) in zip(models, results, strict=True):
            flat = model.parameters()
            flat -= np.float32(0.1) * gradient
        assert_close(results[1][1], results[0][1], device)
    here, there = models
    assert_close(there.parameters(), here.parameters(), device)
    assert_close(there.buffers(), here.buffers(), device)
    assert_close(list(there.evaluate(batch()).values()), list(here.evaluate(batch()).values()), device)
    np.testing.assert_array_equal(there.predict(batch()[0]), here.predict(batch()[0]))


def test_a_move_keeps_the_host_memory_of_the_vectors(device: str) -> None:
    model = TorchModel(network, seed=3)
    flat, (gradient, _) = model.parameters(), model.gradient(batch())
    before = flat.copy(), gradient.copy(), model.buffers()
    model.to(device)
    assert model.parameters() is flat
    assert next(model.module.parameters()).device.type == device
    model.load_buffers(before[2])
    again, _ = model.gradient(batch())
    assert again is gradient
    np.testing.assert_array_equal(flat, before[0])
    assert_close(again, before[1], device)


def test_loaded_parameters_are_used(device: str) -> None:
    here, there = pair(device)
    new = np.random.default_rng(1).normal(size=here.layout.size).astype(np.float32)
    for model in (here, there):
        model.load(new)
        model.load_buffers(np.arange(len(model.buffers()), dtype=np.float32) + 1)
    assert_close(there.evaluate(batch())["loss"], here.evaluate(batch())["loss"], device)


def test_steps_on_the_device_view_are_the_same_and_copy_no_vector_to_the_host(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = pair(device)
    view = device_view(there)
    assert device_view(here) is here
    flat = view.parameters()
    crossings: list[int] = []
    monkeypatch.setattr(crossing, "_as_tensor", lambda array: crossings.append(array.nbytes))
    for step in range(4):
        expected, loss = here.gradient(batch(seed=step))
        gradient, own = view.gradient(batch(seed=step))
        for each in (view.parameters(), gradient):
            assert isinstance(each, torch.Tensor)
            assert each.device.type == device
        here.parameters()[:] -= np.float32(0.1) * expected
        flat -= gradient * np.float32(0.1)
        assert_close(own, loss, device)
    assert not crossings
    assert view.parameters() is flat
    monkeypatch.undo()
    assert_close(there.evaluate(batch())["loss"], here.evaluate(batch())["loss"], device)
    assert_close(there.parameters(), here.parameters(), device)
    assert_close(there.gradient(batch())[0], here.gradient(batch())[0], device)


def test_the_weights_that_were_requested_last_are_valid(device: str) -> None:
    _, model = pair(device)
    view, size = device_view(model), model.layout.size
    view.parameters()[:] = 1
    assert (model.parameters() == 1).all()
    model.parameters()[:] = 2
    assert (view.parameters() == 2).all()
    model.load(np.full(size, 3, np.float32))
    expected = model.evaluate(batch())
    assert view.gradient(batch())[0].shape == (size,)
    assert (view.parameters() == 3).all()
    assert model.evaluate(batch()).keys() == expected.keys()
    view.parameters()[:] = 4
    model.gradient(batch())  # computed with the valid weights, on the host or on the device
    assert (model.flat_parameter() == 4).all()
    assert (model.parameters() == 4).all()


def test_a_parameter_that_the_user_replaces_reaches_the_host(device: str) -> None:
    _, model = pair(device)
    first: Any = model.module
    first[0].bias = nn.Parameter(torch.full((5,), 7.0, device=device))
    assert (model.layout.split(model.parameters())["0.bias"] == 7).all()
    model.gradient(batch())
    assert (first[0].bias == 7).all()


def test_a_torch_optimizer_steps_the_host_parameters(device: str) -> None:
    models = pair(device)
    for model in models:
        # the gradient of a bias before batch normalisation is a rounding error, which eps must exceed
        stepper = torch.optim.Adam([model.flat_parameter()], lr=0.01, eps=1e-3)
        for _ in range(3):
            model.gradient(batch())
            stepper.step()
    assert_close(models[1].parameters(), models[0].parameters(), device)


def test_the_same_seed_drops_the_same_units(device: str) -> None:
    model = TorchModel(lambda: nn.Sequential(nn.Linear(6, 50), nn.Dropout(), nn.Linear(50, 3)), seed=1)
    model.to(device)
    losses = []
    for seed in (5, 6, 5):
        model.reseed(seed)
        losses.append(model.gradient(batch())[1])
    assert losses[0] == losses[2] != losses[1]


def test_values_and_transformed_predictions_are_arrays(device: str) -> None:
    model = TorchModel(lambda: nn.Linear(6, 1), loss="mse", predict_transform=lambda outputs: outputs.round(), seed=1)
    model.to(device)
    inputs = batch()[0]
    assert isinstance(model.predict(inputs), np.ndarray)
    assert model.evaluate((inputs, inputs[:, :1]))["mse"] >= 0


def test_a_moved_model_cannot_be_pickled(device: str) -> None:
    _, model = pair(device)
    with pytest.raises(ConfigurationError, match=f"moved to {device}.*cannot be pickled") as caught:
        pickle.dumps(model)
    assert "\n" not in str(caught.value)


def test_an_estimator_cannot_be_moved(device: str) -> None:
    model = SklearnModel(SGDClassifier(), classes=np.arange(3), n_features=6)
    for refuse in (lambda: check_movable(model), lambda: move(model, device, 0)):
        with pytest.raises(ConfigurationError, match="SGDClassifier computes on the CPU only: ask for no gpus"):
            refuse()


def test_a_missing_gpu_is_reported_in_one_line(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    model = TorchModel(network, seed=3)
    model.to(device)
    with pytest.raises(ConfigurationError, match=r"torch sees no GPU in the process of rank 2 \(CUDA_VISIBLE.* '3'\)"):
        move(model, GPU, rank=2)

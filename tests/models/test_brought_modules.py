"""Modules and losses as users write them: parametrized weights, several outputs, losses of torch, mistakes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import parametrizations

from chimera.core.errors import ConfigurationError, DataError
from chimera.core.pickling import pickled_by_value, unpickled
from chimera.models.torch_model import TorchModel

RNG = np.random.default_rng(0)
X = RNG.standard_normal((12, 4)).astype(np.float32)
Y = RNG.integers(0, 3, 12)
TWO = Y % 2


def t(array: Any) -> torch.Tensor:
    return torch.from_numpy(np.asarray(array))


def network(outputs: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, outputs))


def assert_gradient(model: TorchModel, module: nn.Module, loss: torch.Tensor, batch: Any) -> None:
    loss.backward()
    gradient, value = model.gradient(batch)
    expected = torch.cat([p.grad.ravel() for p in module.parameters() if p.grad is not None])
    assert value == pytest.approx(loss.item(), rel=1e-5)
    np.testing.assert_allclose(gradient, expected.numpy(), atol=1e-6)


@pytest.mark.parametrize("kind", ["weight_norm", "orthogonal", "spectral_norm"])
def test_parametrized_weights_train_and_can_be_sent(kind: str) -> None:
    module = network()
    getattr(parametrizations, kind)(module[0])
    if kind == "weight_norm":
        parametrizations.weight_norm(module[2])
    model = TorchModel(copy.deepcopy(module))
    sent = unpickled(pickled_by_value(unpickled(pickled_by_value(model))))
    assert_gradient(sent, module, F.cross_entropy(module(t(X)), t(Y)), (X, Y))
    assert list(sent.module.state_dict()) == list(module.state_dict())
    assert torch.nn.utils.parametrize.is_parametrized(sent.module[0], "weight")
    sent.load(np.zeros_like(sent.parameters()))
    assert not sent.module[2].bias.any()


class TwoOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.classes, self.value = nn.Linear(4, 3), nn.Linear(4, 1)

    def forward(self, inputs: Any) -> Any:
        return self.classes(inputs), self.value(inputs)


def both(outputs: Any, targets: Any) -> torch.Tensor:
    label, value = targets if isinstance(targets, list | tuple) else (targets, targets.float())
    return F.cross_entropy(outputs[0], label) + F.mse_loss(outputs[1][:, 0], value)


@pytest.mark.parametrize("batch", [(X, Y), (t(X), [t(Y), t(Y).double()])], ids=["one target", "two targets"])
def test_a_loss_function_gets_several_outputs_and_targets(batch: Any) -> None:
    module = TwoOutputs()
    model = TorchModel(copy.deepcopy(module), loss=both)
    assert_gradient(model, module, both(module(t(X)), (t(Y), t(Y).float())), batch)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (nn.CrossEntropyLoss, lambda o: F.cross_entropy(o, t(TWO))),
        (F.cross_entropy, lambda o: F.cross_entropy(o, t(TWO))),
        (nn.BCELoss(), lambda o: F.binary_cross_entropy(o, t(TWO).float()[:, None])),
        (F.binary_cross_entropy, lambda o: F.binary_cross_entropy(o, t(TWO).float()[:, None])),
        ("bce", lambda o: F.binary_cross_entropy(o, t(TWO).float()[:, None])),
    ],
)
def test_losses_of_torch(loss: Any, expected: Callable[[Any], torch.Tensor]) -> None:
    module: nn.Module = network(2) if "cross" in str(loss).lower() and "binary" not in str(loss) else network(1)
    if module[2].out_features == 1:  # type: ignore[index]
        module = nn.Sequential(module, nn.Sigmoid())
    model = TorchModel(copy.deepcopy(module), loss=loss)
    outputs = module(t(X)).detach()
    classes = outputs.argmax(1) if outputs.shape[1] == 2 else (outputs[:, 0] > 0.5).long()
    assert model.predict(X).tolist() == classes.tolist()
    assert_gradient(model, module, expected(module(t(X))), (X, TWO))


class Late(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), None

    def forward(self, inputs: Any) -> Any:
        self.last = self.last or nn.Linear(5, 3)
        return self.last(self.first(inputs))


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 3, dtype=torch.complex64))


@pytest.mark.parametrize(
    ("module", "options", "batch", "message"),
    [
        (Late, {}, (X, Y), "the parameter 'last.weight' was made in forward, so the run does not train it"),
        (Complex, {}, (X, Y), "torch.complex64; .* store torch.view_as_real"),
        (lambda: torch.jit.script(nn.Linear(4, 3)), {}, (X, Y), "give the original module"),
        (lambda: nn.ModuleList([nn.Linear(4, 3)]), {}, (X, Y), "ModuleList has no method forward: define forward"),
        (nn.Flatten, {}, (X, Y), "nothing to train; if forward creates its layers, first run it on a batch"),
        (TwoOutputs, {}, (X, Y), "'cross-entropy' needs one tensor of outputs, not a tuple: give a loss function"),
        (network, {}, (t(X), [t(Y), t(Y)]), "needs one tensor of targets, not a list"),
        (network, {}, (t(X), ["a"] * 12), "targets must be numbers, not texts such as 'a'"),
        (network, {}, (t(X), t(X), t(Y)), "Sequential.forward does not take 2 arguments"),
        (network, {"loss": "mse"}, (t(X), t(Y).float()), "if they are class labels, give integers"),
        (network, {}, (X, Y.astype(np.float32)), "not type float32: give integers or texts"),
        (partial(network, 1), {"loss": "bce"}, (X, TWO), "'bce' needs outputs from 0 to 1, as after a sigmoid"),
        (partial(network, 1), {}, (X, TWO), "for one output use 'bce-with-logits'"),
        (
            partial(network, 1),
            {},
            (X, TWO * 7),
            "the model has one: to predict the integers as values, give them as real",
        ),
        (network, {"loss": nn.CrossEntropyLoss(reduction="sum")}, (X, Y), "has reduction='sum': a run needs the mean"),
        (network, {"loss": partial(F.cross_entropy, reduction="none")}, (X, Y), "has reduction='none'"),
        (network, {"loss": lambda o, y: F.cross_entropy(o, y).item()}, (X, Y), "scalar tensor, but returned float"),
        (network, {"loss": lambda o, y: (F.cross_entropy(o, y), 1)}, (X, Y), "scalar tensor, but returned tuple"),
    ],
)
@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_mistakes_get_one_line(module: Any, options: Any, batch: Any, message: str) -> None:
    with pytest.raises((ConfigurationError, DataError), match=message) as caught:
        TorchModel(module(), **options).gradient(batch)
    assert "\n" not in str(caught.value)


class Normalized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))

    def forward(self, x: Any) -> Any:
        return self.layers(x)


def own_step(module: Any, batch: Any) -> Any:
    return F.cross_entropy(module(batch[0]), batch[1])


@pytest.mark.parametrize("kind", ["arrays", "tensors", "a mapping", "a step", "a stage"])
def test_batch_normalization_of_one_row_gets_a_message_with_the_remedy(kind: str) -> None:
    inputs, labels = np.ones((1, 4), np.float32), np.zeros(1, np.int64)
    batch: Any = (inputs, labels)
    model = TorchModel(Normalized(), step=own_step if kind == "a step" else None)
    if kind == "tensors":
        batch = (t(inputs), t(labels))
    if kind == "a mapping":
        batch = {"x": inputs, "label": labels}
    run = partial(model.gradient, batch)
    if kind == "a stage":
        run = partial(TorchModel(Normalized().layers).stage([0, 1]).forward, 0, inputs, 1, labels)
    with pytest.raises(
        ConfigurationError, match=r"two or more rows .* worker has 1: set a larger batch_size"
    ) as caught:
        run()
    assert "\n" not in str(caught.value)
    model.predict(inputs)  # evaluation needs no statistics of the batch


def test_class_weights_of_double_precision_are_named() -> None:
    weights = torch.from_numpy(np.array([1.0, 2.0, 3.0]))
    with pytest.raises(
        ConfigurationError, match=r"the tensor 'weight' of the loss 'cross-entropy' is torch.float64, .* call"
    ):
        TorchModel(network(), loss=nn.CrossEntropyLoss(weight=weights))

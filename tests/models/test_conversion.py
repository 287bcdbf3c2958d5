import sys

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.linear_model import SGDClassifier, SGDRegressor
from torch import nn

from chimera.core.errors import ConfigurationError, UnknownNameError
from chimera.models.conversion import as_model, build_model
from chimera.models.model import MODELS
from chimera.models.sklearn_model import SklearnModel
from chimera.models.torch_model import TorchModel

DIGITS = {"input_shape": (64,), "outputs": 10, "task": "classification", "seed": 1}
DIABETES = {"input_shape": (64,), "outputs": 1, "task": "regression", "seed": 1}
NAMES = {entry.name for entry in MODELS.entries()}


def batch(given, n=6):
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(n, *given["input_shape"])).astype(np.float32)
    return inputs, rng.integers(0, 2, n) if given["task"] == "classification" else rng.normal(size=n)


@pytest.fixture
def here(monkeypatch):
    """Make this file importable as a module of a user."""
    monkeypatch.setitem(sys.modules, "users_models", sys.modules[__name__])
    return "users_models:"


# Factories as users write them in their own modules.
def with_everything(input_shape, outputs, task, seed, *, width: int = 3):
    assert task == "classification"
    assert seed == 1
    return nn.Sequential(nn.Linear(input_shape[0], width), nn.Linear(width, outputs))


def with_nothing():
    return nn.Linear(64, 10)


def sklearn_factory():
    return SGDClassifier(loss="log_loss")


def model_factory(outputs, seed):
    return TorchModel(lambda: nn.Linear(64, outputs), seed=seed)


def own_loss(loss: float = 1.0):
    assert loss == 2.0
    return nn.Linear(64, 10)


def broken(outputs):
    raise RuntimeError("no\nluck")


def nonsense():
    return 3


class Net(nn.Module):
    def __init__(self, outputs: int):
        super().__init__()
        self.layer = nn.Linear(64, outputs)

    def forward(self, x):
        return self.layer(x)


instance = nn.Linear(64, 10)


def test_everything_is_registered():
    assert {
        "mlp",
        "logistic-regression",
        "linear-regression",
        "cnn",
        "sklearn-sgd-classifier",
        "sklearn-sgd-regressor",
        "cbow",
        "skip-gram",
        "huggingface",
    } <= NAMES
    assert all(entry.summary for entry in MODELS.entries())


@pytest.mark.parametrize("given", [DIGITS, DIABETES], ids=["classes", "values"])
@pytest.mark.parametrize(
    "name", sorted(NAMES - {"cbow", "skip-gram", "huggingface", "folder"})
)  # see test_word_models.py, test_huggingface.py, federation/test_data_names.py
def test_each_registered_model_learns_or_rejects_the_task(name, given):
    regression = given["task"] == "regression"
    if name in {"logistic-regression", "sklearn-sgd-classifier"} and regression:
        with pytest.raises(ConfigurationError, match="is for classification"):
            build_model(name, {}, **given)
        return
    if name in {"linear-regression", "sklearn-sgd-regressor"} and not regression:
        with pytest.raises(ConfigurationError, match="is for regression"):
            build_model(name, {}, **given)
        return
    model = build_model(name, {}, **given)
    data = batch(given)
    before = model.evaluate(data)
    assert set(before) == ({"loss", "mse", "r2"} if regression else {"loss", "accuracy"})
    for _ in range(5):
        model.load(model.parameters() - np.float32(0.002) * model.gradient(data)[0])
    assert model.evaluate(data)["loss"] < before["loss"]
    assert model.predict(data[0]).shape == (6,)
    assert np.array_equal(build_model(name, {}, **given).parameters(), build_model(name, {}, **given).parameters())


@pytest.mark.parametrize(
    ("factory", "options"),
    [
        ("with_everything", {"width": 7}),
        ("with_nothing", {}),
        ("model_factory", {}),
        ("sklearn_factory", {}),
        ("own_loss", {"loss": 2}),
        ("Net", {}),
        ("Net", {"outputs": 12}),
        ("instance", {}),
    ],
)
def test_user_factories(here, factory, options):
    state = torch.get_rng_state()
    model, same = (build_model(here + factory, options, **DIGITS) for _ in range(2))
    assert isinstance(model, SklearnModel if factory == "sklearn_factory" else TorchModel)
    assert model.predict(batch(DIGITS)[0]).shape == (6,)
    assert np.array_equal(model.parameters(), same.parameters())
    assert not np.shares_memory(model.parameters(), same.parameters())
    assert torch.equal(state, torch.get_rng_state())
    if options == {"outputs": 12}:
        assert model.module.layer.out_features == 12


def test_options_of_the_adapter(here):
    options = {"loss": "l1", "metrics": ["mae", "sklearn.metrics:max_error"], "buffers": "first"}
    for name in ("mlp", here + "Net"):
        model = build_model(name, options, **DIABETES)
        assert model.loss.name == "l1"
        assert model.buffer_policy == "first"
        assert set(model.evaluate(batch(DIABETES))) == {"loss", "mae", "max_error"}


def test_loss_by_path_receives_targets_in_the_shape_of_the_outputs():
    model = build_model("mlp", {"loss": "torch.nn.functional:mse_loss"}, **DIABETES)
    named = build_model("mlp", {}, **DIABETES)
    assert np.array_equal(model.gradient(batch(DIABETES))[0], named.gradient(batch(DIABETES))[0])


def test_loss_as_a_torch_module():
    model, named = (as_model(Net, loss=loss, **DIGITS) for loss in (nn.CrossEntropyLoss(), None))
    assert np.array_equal(model.gradient(batch(DIGITS))[0], named.gradient(batch(DIGITS))[0])
    assert model.evaluate(batch(DIGITS)) == named.evaluate(batch(DIGITS))


def test_single_logit_for_two_classes():
    model = build_model("mlp", {"loss": "bce-with-logits"}, **DIGITS | {"outputs": 2})
    assert model.layout.shapes[-1] == (1,)
    assert set(model.predict(batch(DIGITS)[0])) <= {0, 1}


@pytest.mark.parametrize(
    ("thing", "kind"),
    [
        (Net, TorchModel),
        (lambda: nn.Linear(64, 10), TorchModel),
        (SGDClassifier, SklearnModel),
        (SGDClassifier(), SklearnModel),
    ],
)
def test_as_model_takes(thing, kind):
    model = as_model(thing, **DIGITS)
    assert isinstance(model, kind)
    assert as_model(model, **DIGITS) is model


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: build_model("mpl", {}, **DIGITS),
            r"unknown model 'mpl'; did you mean 'mlp'\? known: cbow, cnn, folder, huggingface, linear-regression",
        ),
        (
            lambda: build_model("mlp", {"hiden": [3]}, **DIGITS),
            r"model 'mlp' has no option 'hiden'; did you mean 'hidden'\? its options: hidden",
        ),
        (lambda: build_model("mlp", {"hidden": "wide"}, **DIGITS), "option 'hidden': 'wide' cannot be used"),
        (lambda: build_model("mlp", {"hidden": [0]}, **DIGITS), r"option 'hidden': \[0\] must all be at least 1"),
        (lambda: build_model("mlp", {"dropout": 1}, **DIGITS), "option 'dropout': 1.0 must be at least 0 and below 1"),
        (lambda: build_model("mlp", {"activation": "step"}, **DIGITS), "option 'activation': 'step' cannot be used"),
        (lambda: build_model("cnn", {}, **DIGITS | {"input_shape": (30,)}), "or a flat square, not"),
        (
            lambda: build_model("cnn", {"channels": [1] * 4}, **DIGITS),
            r"4 poolings leave no pixel of an image of shape \(1, 8, 8\)",
        ),
        (
            lambda: build_model("mlp", {"loss": "mse"}, **DIGITS),
            "the loss 'mse' is for regression, but the task is classification",
        ),
        (lambda: build_model("sklearn-sgd-classifier", {"buffers": "first"}, **DIGITS), "'buffers' cannot be set here"),
        (lambda: build_model("sklearn-sgd-regressor", {}, **DIABETES | {"outputs": 2}), "one target, the data have 2"),
        (lambda: as_model(SGDRegressor(), **DIGITS), "SGDRegressor is for regression, the data are for classification"),
        (
            lambda: as_model(SGDClassifier(), **DIABETES),
            "SGDClassifier is for classification, the data are for regression",
        ),
        (
            lambda: as_model(SGDClassifier(), loss="mse", **DIGITS),
            "the option 'loss' cannot be set here: SGDClassifier is",
        ),
        (lambda: as_model(KMeans(), **DIGITS), "KMeans cannot learn from batches"),
        (lambda: as_model(3, **DIGITS), r"cannot make a model of 3 \(int\): give a torch.nn.Module"),
        (lambda: as_model(lambda width: 3, **DIGITS), "needs the option 'width'"),
    ],
)
def test_errors_have_one_line(make, message):
    with pytest.raises(ConfigurationError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_errors_of_factories(here):
    said = r"the model factory 'users_models:broken' raised RuntimeError: no \(test_conversion\.py, line \d+\)$"
    with pytest.raises(ConfigurationError, match=said) as caught:
        build_model(here + "broken", {}, **DIGITS)
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(ConfigurationError, match=r"cannot make a model of 3 \(int\)"):
        build_model(here + "nonsense", {}, **DIGITS)
    with pytest.raises(ConfigurationError, match="is a Linear, not a factory: it has no option 'width'"):
        build_model(here + "instance", {"width": 3}, **DIGITS)
    with pytest.raises(UnknownNameError):
        build_model("nope", {}, **DIGITS)


@pytest.mark.parametrize("shape", [(64,), (8, 8), (1, 8, 8), (784,), (1, 28, 28), (3, 9, 8)])
def test_cnn_takes_images_of_all_shapes(shape):
    given = DIGITS | {"input_shape": shape}
    model = build_model("cnn", {"channels": [2, 3], "hidden": [5], "batch_norm": True, "dropout": 0.1}, **given)
    data = batch(given)
    model.gradient(data)
    assert model.predict(data[0]).shape == (6,)


@pytest.mark.long
def test_a_factory_that_imports_torch_by_itself_is_seeded_too():
    import subprocess

    code = """
from chimera.models.conversion import as_model
def factory():
    from torch import nn
    return nn.Linear(2, 2)
given = dict(input_shape=(2,), outputs=2, task="classification")
first, second = as_model(factory, seed=3, **given), as_model(factory, seed=3, **given)
print((first.parameters() == second.parameters()).all())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


def test_the_task_of_a_loss_function_is_that_of_the_data():
    def focal(outputs, targets):
        log_p = torch.log_softmax(outputs, 1).gather(1, targets[:, None])
        return (-((1 - log_p.exp()) ** 2) * log_p).mean()

    about = {"outputs": 3, "input_shape": (4,)}
    model = as_model(TorchModel(nn.Linear(4, 3), loss=focal), task="classification", **about)
    inputs, targets = np.ones((6, 4), np.float32), np.arange(6) % 3
    assert set(model.evaluate((inputs, targets))) == {"loss", "accuracy"}
    assert model.predict(inputs).shape == (6,)
    own = as_model(TorchModel(nn.Linear(4, 3), loss=focal, task="regression"), task="classification", **about)
    assert own.task == "regression"


def test_a_loss_module_of_torch_has_the_task_of_its_name():
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0]))
    model = TorchModel(nn.Linear(4, 2), loss=weighted)
    inputs, targets = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32), np.arange(6) % 2
    figures = model.evaluate((inputs, targets))
    assert figures["loss"] == pytest.approx(
        weighted(model.module(torch.from_numpy(inputs)), torch.from_numpy(targets)).item()
    )
    assert "accuracy" in figures
    several = TorchModel(nn.Linear(4, 3), loss=nn.BCEWithLogitsLoss())
    assert several.predict(inputs).shape == (6, 3)
    with pytest.raises(ConfigurationError, match="the loss 'cross-entropy' is for classification"):
        TorchModel(nn.Linear(4, 2), loss=weighted, task="regression")

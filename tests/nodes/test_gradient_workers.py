"""Workers for a parameter server: their gradients are the derivatives of the estimator's objective."""

from __future__ import annotations

import re
import tracemalloc
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_iris
from sklearn.linear_model import SGDClassifier, SGDRegressor

from chimera.core.errors import ConfigurationError
from chimera.engines.http import wire
from chimera.models.sklearn_model import SklearnModel
from chimera.nodes.masters import ParameterServerMaster
from chimera.nodes.workers import SGDWorker, TorchWorker
from nodes.served import ask, error_of, serving, settings, write_data

SAMPLE, STEP, PREDICT = "/v1/chimera/sgd/request-data-sample", "/v1/chimera/sgd/fit-step", "/v1/chimera/model/predict"
BINARY = {"Content-Type": wire.CONTENT_TYPE}
RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 4))
VALUES = X @ [1.0, -2.0, 0.5, 0.0] + 3 + 0.1 * RNG.standard_normal(60)
TWO, THREE = (VALUES > 3).astype(int), np.digitize(VALUES, [2, 4])


def step(app: Any, weights: Any, bias: Any, **more: Any) -> tuple[Any, Any]:
    answer = ask(app, "POST", STEP, json={"weights": weights, "bias": bias, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()["weights_gradients"], answer.json()["bias_gradient"]


@pytest.mark.parametrize("loss", ["squared_error", "huber"])
@pytest.mark.parametrize("penalty", [None, "l2", "elasticnet"])
def test_the_gradient_of_a_regressor_is_the_derivative_of_its_objective(
    tmp_path: Path, loss: str, penalty: str | None
) -> None:
    write_data(tmp_path / "tree1", X, VALUES)
    options = {"loss": loss, "penalty": penalty, "alpha": 0.3}
    app = SGDWorker("regressor", exact_gradient=True, settings=settings(tmp_path), **options).app()
    model = SklearnModel(SGDRegressor(**options), n_features=4)

    def objective(flat: NDArray[Any]) -> float:
        residual = X @ flat[:4] + flat[4] - VALUES
        epsilon = model.estimator.epsilon
        clipped = np.clip(residual, -epsilon, epsilon)
        losses = residual**2 / 2 if loss == "squared_error" else clipped * (residual - clipped / 2)
        ratio = {None: (0, 0), "l2": (0, 1), "elasticnet": (0.15, 0.85)}[penalty]
        return float(losses.mean() + 0.3 * (ratio[0] * np.abs(flat[:4]).sum() + ratio[1] * flat[:4] @ flat[:4] / 2))

    for _ in range(3):
        flat = RNG.standard_normal(5)
        near = [(objective(flat + d) - objective(flat - d)) / 2e-5 for d in np.eye(5) * 1e-5]
        weights, bias = step(app, [flat[:4].tolist()], [flat[4]])
        np.testing.assert_allclose([*weights[0], *bias], near, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(("labels", "outputs"), [(TWO, 1), (THREE, 3)])
@pytest.mark.parametrize("loss", ["log_loss", "hinge"])
def test_the_gradient_of_a_classifier_equals_that_of_the_model_in_json_and_binary(
    tmp_path: Path, labels: NDArray[Any], outputs: int, loss: str
) -> None:
    write_data(tmp_path / "tree1", X, labels)
    app = SGDWorker("classifier", exact_gradient=True, loss=loss, alpha=0.1, settings=settings(tmp_path)).app()
    model = SklearnModel(SGDClassifier(loss=loss, alpha=0.1), classes=np.unique(labels), n_features=4)
    for _ in range(2):
        weights, bias = RNG.standard_normal((outputs, 4)), RNG.standard_normal(outputs)
        model.load(np.concatenate([weights.ravel(), bias]).astype(np.float32))
        expected = model.gradient((X.astype(np.float32), labels))[0].tolist()
        got = step(app, weights.tolist(), bias.tolist())
        np.testing.assert_allclose(np.concatenate([np.ravel(got[0]), got[1]]), expected, rtol=1e-5, atol=1e-6)
        packed = wire.pack({"weights": weights, "bias": bias, "classes": np.unique(labels)})
        answer = wire.unpack(ask(app, "POST", STEP, content=packed, headers=BINARY).content)
        assert answer["weights_gradients"].shape == weights.shape
        assert np.array_equal(answer["weights_gradients"], np.array(got[0], np.float32))  # JSON loses no bit
        assert np.array_equal(answer["bias_gradient"], np.array(got[1], np.float32))


@pytest.mark.parametrize(
    ("task", "targets", "labels"), [("regressor", VALUES, []), ("classifier", THREE, [[0], [1], [2]])]
)
def test_a_worker_without_shared_samples_returns_columns_and_classes_only(
    tmp_path: Path, task: str, targets: NDArray[Any], labels: list[Any]
) -> None:
    """Masters need no rows: the fit is bit-equal without them."""
    found = {}
    for share in (True, False):
        write_data(tmp_path / "tree1", X, targets)
        own = settings(tmp_path, share_samples=share)
        with serving(SGDWorker(task, eta0=0.01, settings=own).app(), own) as url:
            sample = httpx.get(f"{url}{SAMPLE}").json()
            port = int(url.rpartition(":")[2])
            master = ParameterServerMaster(task, max_iter=3, settings=settings(tmp_path, workers_mapped_ports=[port]))
            assert ask(master.app(), "POST", "/v1/chimera/parameter-server/fit").json()["fit"] == "ok"
            rows = {"X_pred_columns": sample["X_train_sample_columns"], "X_pred_rows": X.tolist()}
            found[share] = sample, ask(master.app(), "POST", "/v1/chimera/parameter-server/predict", json=rows).json()
    assert len(found[True][0]["X_train_sample_rows"]) > 0
    assert (found[False][0]["X_train_sample_rows"], found[False][0]["y_train_sample_rows"]) == ([], labels)
    assert found[False][0]["X_train_sample_columns"] == found[True][0]["X_train_sample_columns"]
    assert found[False][1] == found[True][1]


def test_gradients_have_the_shape_of_the_weights(tmp_path: Path) -> None:
    write_data(tmp_path / "tree1", X, VALUES)
    app = SGDWorker("regressor", exact_gradient=True, settings=settings(tmp_path)).app()
    flat, rows = step(app, [0.0] * 4, [0.0]), step(app, [[0.0] * 4], [0.0])
    assert (len(flat[0]), len(flat[1])) == (4, 1)
    assert rows == ([flat[0]], flat[1])
    assert step(app, [0] * 4, [0]) == flat  # integers in JSON are accepted


def test_a_gradient_uses_the_current_data(tmp_path: Path) -> None:
    app = SGDWorker("regressor", exact_gradient=True, penalty=None, settings=settings(tmp_path)).app()
    for factor in (1.0, 2.0, 3.0):
        write_data(tmp_path / "tree1", X, factor * VALUES)
        np.testing.assert_allclose(step(app, [0.0] * 4, [0.0])[1], [-factor * VALUES.mean()], rtol=1e-5)


def test_the_mean_gradient_of_workers_that_lack_a_class_equals_that_of_the_pooled_data(tmp_path: Path) -> None:
    names = np.array(["low", "mid", "top"])[THREE]
    first = THREE < 2
    halves = np.flatnonzero(first), np.flatnonzero(~first)
    model = SklearnModel(SGDClassifier(loss="log_loss", penalty=None), classes=np.arange(3), n_features=4)
    weights, bias = RNG.standard_normal((3, 4)), RNG.standard_normal(3)
    model.load(np.concatenate([weights.ravel(), bias]).astype(np.float32))
    total = np.zeros(15)
    for number, rows in enumerate(halves):
        write_data(tmp_path / f"w{number}", X[rows], names[rows])
        app = SGDWorker(
            "classifier", exact_gradient=True, loss="log_loss", penalty=None, settings=settings(tmp_path, f"w{number}")
        ).app()
        got = step(app, weights.tolist(), bias.tolist(), classes=["low", "mid", "top"])
        total += np.concatenate([np.ravel(got[0]), got[1]]) * len(rows) / len(X)
    np.testing.assert_allclose(total, model.gradient((X.astype(np.float32), THREE))[0], rtol=1e-4, atol=1e-6)


def test_class_weights_refer_to_the_labels(tmp_path: Path) -> None:
    write_data(tmp_path / "tree1", X, TWO + 5)
    options: dict[str, Any] = {"loss": "log_loss", "class_weight": {5: 1.0, 6: 10.0}}
    app = SGDWorker("classifier", exact_gradient=True, settings=settings(tmp_path), **options).app()
    model = SklearnModel(SGDClassifier(**options), classes=[5, 6], n_features=4)
    expected = model.gradient((X.astype(np.float32), TWO + 5))[0].tolist()
    got = step(app, [0.0] * 4, [0.0])
    np.testing.assert_allclose([*got[0], *got[1]], expected, rtol=1e-5)


def test_a_sample_has_a_row_of_each_class(tmp_path: Path) -> None:
    order = np.argsort(THREE, kind="stable")
    write_data(tmp_path / "tree1", X[order], THREE[order], columns=["a", "b", "c", "d"])
    for worker in (
        SGDWorker("classifier", exact_gradient=True, settings=settings(tmp_path)),
        SGDWorker("regressor", exact_gradient=True, settings=settings(tmp_path)),
    ):
        sample = ask(worker.app(), "GET", SAMPLE).json()
        rows = np.array(sample["X_train_sample_rows"])
        labels = np.ravel(sample["y_train_sample_rows"])
        assert sample["X_train_sample_columns"] == ["a", "b", "c", "d"]
        assert sample["y_train_sample_columns"] == ["y"]
        assert 5 <= len(rows) == len(labels) <= 8
        for row, label in zip(rows, labels, strict=True):
            assert THREE[np.abs(X - row).sum(1).argmin()] == label
        assert set(labels) == ({0, 1, 2} if worker.task == "classification" else {0})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"weights": [0.0] * 4}, "no 'bias'"),
        ({"weights": [0.0] * 3, "bias": [0]}, r"weights must have the shape (1, 4), not (3,)"),
        ({"weights": [[0.0] * 4] * 2, "bias": [0]}, "weights must have the shape"),
        ({"weights": [0.0] * 4, "bias": []}, "bias must have 1 numbers"),
        ({"weights": [0.0] * 4, "bias": 0}, "bias must be a list of numbers"),
        ({"weights": [0.0, 0.0, 0.0, 1e39], "bias": [0]}, "only finite numbers of type float32"),
        ({"weights": [0.0, 0.0, 0.0, "1"], "bias": [0]}, "contains '1'"),
        ({"weights": [0.0] * 4, "bias": [0], "classes": [1, 0]}, "classes must be sorted"),
        ({"weights": [0.0] * 4, "bias": [0], "classes": [0, 2]}, "classes lacks 1"),
        ({"weights": [0.0] * 4, "bias": [0], "classes": ["0", "1"]}, "the type of this worker's labels, such as 0"),
        ({"weights": [0.0] * 4, "bias": [0], "classes": []}, "the type of this worker's labels"),
        ({"weights": [0.0] * 4, "bias": [0], "classes": 7}, "classes must be a list"),
    ],
)
def test_an_invalid_step_is_422(tmp_path: Path, body: dict[str, Any], message: str) -> None:
    write_data(tmp_path / "tree1", X, TWO)
    app = SGDWorker("classifier", exact_gradient=True, settings=settings(tmp_path)).app()
    status, name, text = error_of(ask(app, "POST", STEP, json=body))
    assert (status, name) == (422, "DataError")
    assert message in text
    step(app, [0.0] * 4, [0.0])  # a later step is not affected


def test_weights_whose_gradient_is_not_finite_are_422(tmp_path: Path) -> None:
    write_data(tmp_path / "tree1", X, VALUES)
    app = SGDWorker("regressor", exact_gradient=True, settings=settings(tmp_path)).app()
    status, name, message = error_of(ask(app, "POST", STEP, json={"weights": [3e38] * 4, "bias": [0]}))
    assert (status, name) == (422, "NonFiniteError")
    assert message.startswith("the gradient at these weights is not finite")


def test_binary_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    write_data(tmp_path / "tree1", X, VALUES)
    app = SGDWorker("regressor", exact_gradient=True, settings=settings(tmp_path)).app()
    packed = wire.pack({"weights": np.array([0, 0, 0, np.nan]), "bias": np.zeros(1)})
    assert error_of(ask(app, "POST", STEP, content=packed, headers=BINARY))[:2] == (422, "DataError")


def test_unsuitable_data_are_422(tmp_path: Path) -> None:
    app = SGDWorker("classifier", exact_gradient=True, settings=settings(tmp_path)).app()
    assert "there is no" in error_of(ask(app, "GET", SAMPLE))[2]
    write_data(tmp_path / "tree1", X, np.zeros(60, int))
    assert (
        "one class only, 0: send all classes"
        in error_of(ask(app, "POST", STEP, json={"weights": [0] * 4, "bias": [0]}))[2]
    )
    write_data(tmp_path / "tree1", X, X[:, :2])
    assert "must have one column, not 2" in error_of(ask(app, "GET", SAMPLE))[2]
    write_data(tmp_path / "tree1", X * 1e300, TWO)
    message = error_of(ask(app, "POST", STEP, json={"weights": [0] * 4, "bias": [0]}))[2]
    assert "X_train.csv, row 1, column 'x0'" in message
    assert "exceeds the range of float32" in message


@pytest.mark.parametrize("kind", ["local", "exact", "torch"])
def test_a_model_is_created_only_for_as_many_classes_as_the_weights_are_for(tmp_path: Path, kind: str) -> None:
    write_data(tmp_path / "tree1", X, TWO)
    made = settings(tmp_path)
    worker: Any = (
        TorchWorker("mlp", settings=made)
        if kind == "torch"
        else SGDWorker("classifier", exact_gradient=kind == "exact", settings=made)
    )
    body = {"weights": [[0.0] * 4] * 3, "bias": [0.0] * 3, "classes": list(range(100_000))}
    tracemalloc.start()
    try:
        status, _, message = error_of(ask(worker.app(), "POST", STEP, json=body))
        assert (status, message) == (422, "weights has 12 numbers: too few for 100000 classes")
        body["classes"] = ["a" * 100_000, *(f"b{i:04}" for i in range(999))]
        worker.read()
        status, _, message = error_of(ask(worker.app(), "POST", STEP, json=body | {"weights": [[0.0] * 4] * 1000}))
        assert (status, message) == (422, "classes has texts that are too long")
        assert tracemalloc.get_traced_memory()[1] < 100_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("model_type", "options", "message"),
    [
        ("tree", {}, "model_type must be 'regressor' or 'classifier', not 'tree'"),
        ("regressor", {"depth": 3}, "SGDRegressor: .*'depth'"),
        ("regressor", {"alpha": -1.0}, "SGDRegressor cannot be trained with these parameters: .*alpha"),
        ("classifier", {"loss": "none"}, "SGDClassifier cannot be trained with these parameters: .*loss"),
        ("classifier", {"average": True}, "cannot be trained here"),
    ],
)
def test_invalid_options_are_refused_in_one_line(
    tmp_path: Path, model_type: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        SGDWorker(model_type, settings=settings(tmp_path), **options)
    assert "\n" not in str(caught.value)


@pytest.fixture
def iris(tmp_path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    inputs, labels = load_iris(return_X_y=True)
    inputs = (inputs - inputs.mean(0)) / inputs.std(0)
    names = np.array(["setosa", "versicolor", "virginica"])[labels]
    write_data(tmp_path / "tree1", inputs, names)
    return inputs, names


def test_a_network_is_trained_by_steps_along_its_gradient(
    tmp_path: Path, iris: tuple[NDArray[Any], NDArray[Any]]
) -> None:
    inputs, names = iris
    worker = TorchWorker("mlp", options={"hidden": (16,)}, settings=settings(tmp_path))
    app = worker.app()
    body = {"X_pred_columns": [f"x{i}" for i in range(4)], "X_pred_rows": inputs.tolist()}
    assert error_of(ask(app, "POST", PREDICT, json=body))[:2] == (409, "NotFittedError")
    sample = ask(app, "GET", SAMPLE).json()
    assert sample["bias"] == []
    assert {label for (label,) in sample["y_train_sample_rows"]} == set(names)
    weights = np.array(sample["weights"])
    for _ in range(100):
        gradient, bias = step(app, weights.tolist(), [])
        assert bias == []
        weights -= 0.3 * np.array(gradient)
    assert ask(app, "GET", SAMPLE).json()["weights"] == sample["weights"]  # still the initial weights
    answer = ask(app, "POST", PREDICT, json=body | {"weights": weights.tolist()}).json()
    assert np.mean(np.array(answer["y_pred_rows"]) == names) > 0.9
    assert answer["classes"] == ["setosa", "versicolor", "virginica"]
    probabilities = np.array(answer["y_proba_rows"])
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
    assert np.array_equal(np.array(answer["classes"])[probabilities.argmax(1)], answer["y_pred_rows"])
    assert ask(app, "POST", PREDICT, json=body).json() == answer  # with the weights of the last request


@pytest.mark.parametrize("loss", ["mse", "bce-with-logits", "nll"])
def test_the_gradient_of_a_network_is_the_derivative_of_its_loss(tmp_path: Path, loss: str) -> None:
    import torch
    from torch import nn

    def make() -> nn.Module:
        layers: list[nn.Module] = [nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2 if loss == "nll" else 1)]
        return nn.Sequential(*layers, *([nn.LogSoftmax(1)] if loss == "nll" else []))

    write_data(tmp_path / "tree1", X, VALUES if loss == "mse" else TWO)
    worker = TorchWorker(make, loss=loss, settings=settings(tmp_path))
    weights = worker.sample()["weights"]
    gradient = worker.fit_step(weights, [])["weights_gradients"]
    module = make()
    parameters = torch.tensor(weights, requires_grad=True)
    shapes = {name: tensor.shape for name, tensor in module.named_parameters()}
    pieces = parameters.split([shape.numel() for shape in shapes.values()])
    named = {name: piece.reshape(shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)}
    outputs = torch.func.functional_call(module, named, (torch.tensor(X, dtype=torch.float32),))
    functions = {
        "mse": lambda: nn.functional.mse_loss(outputs[:, 0], torch.tensor(VALUES, dtype=torch.float32)),
        "bce-with-logits": lambda: nn.functional.binary_cross_entropy_with_logits(
            outputs[:, 0], torch.tensor(TWO).float()
        ),
        "nll": lambda: nn.functional.nll_loss(outputs, torch.tensor(TWO)),
    }
    functions[loss]().backward()
    np.testing.assert_allclose(gradient, parameters.grad, rtol=1e-4, atol=1e-6)
    body = {"X_pred_columns": ["x0", "x1", "x2", "x3"], "X_pred_rows": X.tolist()}
    answer = ask(worker.app(), "POST", PREDICT, json=body).json()
    if loss == "mse":
        np.testing.assert_allclose(answer["y_pred_rows"], outputs[:, 0].detach(), rtol=1e-5)
    else:
        second = outputs[:, 0].sigmoid() if loss == "bce-with-logits" else outputs[:, 1].exp()
        np.testing.assert_allclose(np.array(answer["y_proba_rows"])[:, 1], second.detach(), rtol=1e-4)


def test_unsuitable_networks_are_refused_in_one_line(tmp_path: Path, iris: Any) -> None:
    from torch import nn

    with pytest.raises(ConfigurationError, match="unknown model 'mpl'"):
        TorchWorker("mpl", settings=settings(tmp_path))
    with pytest.raises(ConfigurationError, match="unknown loss"):
        TorchWorker("mlp", loss="cross", settings=settings(tmp_path))
    for factory, expected in [
        (lambda: nn.Linear(7, 3), "the network does not accept rows with 4 columns"),
        (lambda: nn.Linear(4, 2), "the network has outputs for 2 classes, but there are 3"),
        (lambda: 1 / 0, "the model factory .* raised ZeroDivisionError"),
    ]:
        app = TorchWorker(factory, settings=settings(tmp_path)).app()  # type: ignore[arg-type, return-value]
        status, _, message = error_of(ask(app, "GET", SAMPLE))
        assert status == 422
        assert re.search(expected, message), message

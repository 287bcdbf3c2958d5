"""A parameter server with one ``partial_fit`` per step reaches the coefficients of a loop of plain scikit-learn."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_wine
from sklearn.linear_model import SGDClassifier, SGDRegressor

from chimera.core.errors import ConfigurationError
from chimera.nodes.masters import ParameterServerMaster
from chimera.nodes.settings import read_settings
from chimera.nodes.workers import SGDWorker
from chimera.web.errors import AllWorkersFailed
from nodes.cluster import foreign_worker
from nodes.served import ask, serving, settings, write_data

STEP = "/v1/chimera/sgd/fit-step"
RNG = np.random.default_rng(3)
COLUMNS = [f"c{i}" for i in range(4)]
SCALED = RNG.standard_normal((90, 4))
UNSCALED = SCALED * [1.0, 30.0, 150.0, 0.01] + [8.0, 40.0, 300.0, 1.0]
VALUES = SCALED @ [1.0, -2.0, 0.5, 0.3] + 6 + 0.3 * RNG.standard_normal(90)
TWO = np.array(["red", "white"])[(VALUES > 6).astype(int)]
THREE = np.digitize(VALUES, [5, 7])
TYPES: dict[str, Any] = {"regressor": SGDRegressor, "classifier": SGDClassifier}


def looped(
    model_type: str, parts: list[Any], steps: int, options: list[dict[str, Any]], epsilon: float = 1e-11
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the coefficients of a loop of plain scikit-learn: one pass over each part, then subtract the mean change."""
    classifies = model_type == "classifier"
    classes = np.unique(np.concatenate([y for _, y in parts])) if classifies else None
    outputs = 1 if classes is None or len(classes) == 2 else len(classes)
    more = {} if classes is None else {"classes": classes}
    models = [TYPES[model_type](**each) for each in options]
    width = parts[0][0].shape[1]
    shape: Any = (outputs, width) if classifies else (width,)
    coef, intercept = np.zeros(shape), np.zeros(outputs)
    for _ in range(steps):
        changes = []
        for model, (inputs, targets) in zip(models, parts, strict=True):
            model.coef_, model.intercept_ = coef.copy(), intercept.copy()
            model.partial_fit(inputs, targets, **more)
            changes.append((coef - model.coef_, intercept - model.intercept_))
        moved, lifted = (np.mean(each, axis=0) for each in zip(*changes, strict=True))
        coef, intercept = coef - moved, intercept - lifted
        if max(np.abs(moved).max(), np.abs(lifted).max()) <= epsilon:
            break
    return coef, intercept


@contextlib.contextmanager
def served(folder: Path, model_type: Any, parts: list[Any], options: list[dict[str, Any]]) -> Iterator[Any]:
    """Serve a worker for each part; yield the settings of their master."""
    with contextlib.ExitStack() as stack:
        ports = []
        for number, ((inputs, targets), each) in enumerate(zip(parts, options, strict=True)):
            name = f"w{number}"
            columns = [f"c{i}" for i in range(inputs.shape[1])]
            write_data(folder / name, inputs, targets, columns)
            own = settings(folder, name)
            url = stack.enter_context(serving(SGDWorker(model_type, settings=own, **each).app(), own))
            ports.append(int(url.rsplit(":", 1)[1]))
        yield settings_of(*ports)


def settings_of(*ports: int) -> Any:
    names = [f"w{i}" for i in range(len(ports))]
    return read_settings(
        workers_nodes_names=names, workers_mapped_ports=list(ports), workers_cpu_shares=[2] * len(ports)
    )


def coefficients(master: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the coefficients and intercept of a fitted master."""
    predictor = master._fit[1]
    return predictor.coef_, predictor.intercept_


def cut(inputs: NDArray[Any], targets: NDArray[Any], workers: int) -> list[Any]:
    return [(inputs[i::workers], targets[i::workers]) for i in range(workers)]


CASES: dict[str, tuple[Any, Any, Any, dict[str, Any]]] = {
    "regression": ("regressor", SCALED, VALUES, {}),
    "regression, other step options": (
        "regressor",
        SCALED,
        VALUES,
        {"learning_rate": "constant", "eta0": 0.003, "penalty": "elasticnet", "alpha": 0.01, "loss": "huber"},
    ),
    "regression, unscaled": ("regressor", UNSCALED, VALUES, {"eta0": 1e-7}),
    "regression, 'optimal'": ("regressor", SCALED, VALUES, {"learning_rate": "optimal", "alpha": 0.1}),
    "two classes": ("classifier", SCALED, TWO, {"loss": "log_loss"}),
    "two classes, unscaled": ("classifier", UNSCALED, TWO, {"loss": "log_loss", "learning_rate": "optimal"}),
    "two classes, class weights": (
        "classifier",
        SCALED,
        TWO,
        {"class_weight": {"red": 3.0, "white": 1.0}, "learning_rate": "invscaling", "eta0": 0.1},
    ),
    "three classes": ("classifier", SCALED, THREE, {"penalty": "l1"}),
    "three classes, unscaled": ("classifier", UNSCALED, THREE, {"learning_rate": "adaptive", "eta0": 1e-4}),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES)
def test_coefficients_equal_those_of_a_loop_of_scikit_learn(tmp_path: Path, case: str) -> None:
    model_type, inputs, targets, given = CASES[case]
    workers = 3
    parts = cut(inputs, targets, workers)
    options = [{**given, "random_state": 7 + i} for i in range(workers)]
    coef, intercept = looped(model_type, parts, 25, options)
    with served(tmp_path, model_type, parts, options) as own:
        master = ParameterServerMaster(model_type, max_iter=25, settings=own)
        for _ in range(2):  # a second fit starts again from zero
            master.fit()
            got, raised = coefficients(master)
            np.testing.assert_allclose(got, coef, rtol=1e-6, atol=1e-6 * np.abs(coef).max())
            np.testing.assert_allclose(raised, intercept, rtol=1e-6, atol=1e-6 * np.abs(coef).max())


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 2, 7])
def test_a_regression_on_unscaled_columns_of_wines_is_fitted_in_200_steps(tmp_path: Path, workers: int) -> None:
    inputs, targets = load_wine(return_X_y=True)
    parts = cut(inputs, targets.astype(float), workers)
    options = [{"eta0": 1e-7, "random_state": i} for i in range(workers)]
    coef, intercept = looped("regressor", parts, 200, options)
    with served(tmp_path, "regressor", parts, options) as own:
        master = ParameterServerMaster("regressor", max_iter=200, settings=own)
        master.fit()
    got, raised = coefficients(master)
    np.testing.assert_allclose(got, coef, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(raised, intercept, rtol=1e-6, atol=1e-12)


def test_each_worker_has_its_own_options(tmp_path: Path) -> None:
    parts = cut(SCALED, VALUES, 2)
    options: list[dict[str, Any]] = [
        {"eta0": 0.05, "penalty": None, "random_state": np.random.RandomState(5)},
        {"learning_rate": "constant", "eta0": 0.001, "shuffle": False},
    ]
    alone = [options[0] | {"random_state": np.random.RandomState(5)}, options[1]]
    coef, intercept = looped("regressor", parts, 30, alone)
    with served(tmp_path, "regressor", parts, options) as own:
        master = ParameterServerMaster("regressor", max_iter=30, settings=own)
        master.fit()
        np.testing.assert_allclose(coefficients(master)[0], coef, rtol=1e-6)
        master.fit()  # the random generator also starts again
    np.testing.assert_allclose(coefficients(master)[0], coef, rtol=1e-6)
    np.testing.assert_allclose(coefficients(master)[1], intercept, rtol=1e-6)


def test_a_fit_beyond_float32_is_finite_if_the_loop_is(tmp_path: Path) -> None:
    parts = cut(SCALED * 1e30, VALUES, 2)
    options: list[dict[str, Any]] = [{"shuffle": False}] * 2
    coef, _ = looped("regressor", parts, 5, options)
    assert np.abs(coef).max() > 1e39
    with served(tmp_path, "regressor", parts, options) as own:
        master = ParameterServerMaster("regressor", max_iter=5, settings=own)
        master.fit()
    np.testing.assert_allclose(coefficients(master)[0], coef, rtol=1e-6)


def test_an_overflow_is_reported_for_each_worker(tmp_path: Path) -> None:
    parts = cut(SCALED * 1e300, VALUES, 2)
    with pytest.raises(ValueError, match="flow occurred"):
        looped("regressor", parts, 5, [{}, {}])
    message = r"w0.*flow occurred.*w1.*flow occurred"
    with served(tmp_path, "regressor", parts, [{}, {}]) as own, pytest.raises(AllWorkersFailed, match=message):
        ParameterServerMaster("regressor", max_iter=5, settings=own).fit()


def test_without_a_seed_each_step_shuffles_differently_and_a_fit_is_reproducible(tmp_path: Path) -> None:
    write_data(tmp_path / "tree1", SCALED, VALUES)
    app = SGDWorker("regressor", eta0=0.1, learning_rate="constant", settings=settings(tmp_path)).app()
    body = {"weights": [0.0] * 4, "bias": [0.0]}
    answers = [ask(app, "POST", STEP, json={**body, "step": step}).json() for step in (0, 1, 0, 1)]
    assert answers[0] == answers[2] != answers[1] == answers[3]
    continued = [ask(app, "POST", STEP, json=body).json() for _ in range(2)]
    assert answers[0] != continued[0] != continued[1]  # without a step number, the count continues


@pytest.mark.parametrize("step", [-1, 1.5, "1", True, 2**41])
def test_an_invalid_step_number_is_422(tmp_path: Path, step: Any) -> None:
    write_data(tmp_path / "tree1", SCALED, VALUES)
    app = SGDWorker("regressor", settings=settings(tmp_path)).app()
    answer = ask(app, "POST", STEP, json={"weights": [0.0] * 4, "bias": [0.0], "step": step})
    assert answer.status_code == 422
    assert "step must be a whole number" in answer.json()["message"]


def test_a_foreign_worker_that_returns_steps_can_participate(tmp_path: Path) -> None:
    parts = cut(SCALED, VALUES, 2)
    options: list[dict[str, Any]] = [{"shuffle": False}] * 2
    coef, _ = looped("regressor", parts, 20, options)
    inputs, targets = parts[1]
    foreign = SGDRegressor(shuffle=False)

    def sample(_: Any, __: Any) -> Any:
        names = {"X_train_sample_columns": COLUMNS, "y_train_sample_columns": ["y"]}
        return names | {"X_train_sample_rows": inputs[:2].tolist(), "y_train_sample_rows": [[1.0], [2.0]]}

    def step(_: Any, body: dict[str, Any]) -> Any:
        sent, bias = np.ravel(body["weights"]), np.array(body["bias"])
        foreign.coef_, foreign.intercept_ = sent.copy(), bias.copy()
        foreign.partial_fit(inputs, targets)
        gradients = {"weights_gradients": [(sent - foreign.coef_).tolist()]}
        return gradients | {"bias_gradient": (bias - foreign.intercept_).tolist()}

    routes = {("GET", "/v1/chimera/sgd/request-data-sample"): sample, ("POST", STEP): step}
    with served(tmp_path, "regressor", parts[:1], options[:1]) as own, foreign_worker(routes) as port:
        master = ParameterServerMaster("regressor", max_iter=20, settings=settings_of(*own.workers_mapped_ports, port))
        master.fit()
    np.testing.assert_allclose(coefficients(master)[0], coef, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"average": True}, "average=True"),
        ({"early_stopping": True}, "early_stopping=True"),
        ({"class_weight": "balanced"}, "class_weight='balanced'"),
        ({"exact_gradient": True, "eta0": 0.1}, "eta0 has no effect on a worker with exact_gradient=True"),
        ({"exact_gradient": True, "learning_rate": "pa1"}, "has no exact gradient"),
    ],
)
def test_an_option_without_effect_is_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        SGDWorker("classifier", settings=settings(tmp_path), **options)


def test_a_worker_that_returns_gradients_in_a_fit_of_steps_is_dropped(tmp_path: Path, caplog: Any) -> None:
    parts = cut(SCALED, VALUES, 2)
    with served(tmp_path, "regressor", parts, [{}, {"exact_gradient": True}]) as own:
        ParameterServerMaster("regressor", max_iter=3, settings=own).fit()
    assert "w1: fit failed: its data or model do not match those of w0" in caplog.text
    assert "it returns the exact gradient (exact_gradient=True)" in caplog.text


@pytest.mark.parametrize(
    ("exact", "given", "useless"),
    [
        (False, {"eta0": 0.5, "learning_rate": "constant", "penalty": "l2"}, "eta0, learning_rate, penalty"),
        (True, {"eta0": 0.5, "learning_rate": "constant", "power_t": 0.1, "penalty": "l2"}, "penalty, power_t"),
    ],
)
def test_options_of_the_master_without_effect_are_named(
    tmp_path: Path, caplog: Any, exact: bool, given: dict[str, Any], useless: str
) -> None:
    with served(tmp_path, "regressor", cut(SCALED, VALUES, 1), [{"exact_gradient": exact}]) as own:
        ParameterServerMaster("regressor", max_iter=2, settings=own, **given).fit()
    assert f"without effect on this fit: {useless};" in caplog.text

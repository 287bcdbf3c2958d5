"""Workers with scikit-learn estimators: they answer like the estimator itself."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.linear_model import LinearRegression, LogisticRegression, RidgeClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from chimera.core.errors import ConfigurationError, DataError
from chimera.engines.http import wire
from chimera.nodes.workers import ClassificationWorker, RegressionWorker
from nodes.served import ask, error_of, no_new_threads, serving, settings, write_data

FIT, PREDICT = "/v1/chimera/model/fit", "/v1/chimera/model/predict"
BINARY = {"Content-Type": wire.CONTENT_TYPE}


def body_of(rows: NDArray[Any], columns: list[str] | None = None) -> dict[str, Any]:
    return {"X_pred_columns": columns or [f"x{i}" for i in range(rows.shape[1])], "X_pred_rows": rows.tolist()}


@pytest.fixture
def cancer(tmp_path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    rows, y = load_breast_cancer(return_X_y=True)
    write_data(tmp_path / "tree1", rows, y)
    return rows, y


@pytest.fixture
def diabetes(tmp_path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    rows, y = load_diabetes(return_X_y=True)
    write_data(tmp_path / "tree1", rows, y)
    return rows, y


@pytest.mark.parametrize(
    "estimator",
    [
        DecisionTreeClassifier(max_depth=4, random_state=0),
        make_pipeline(StandardScaler(), LogisticRegression()),
        make_pipeline(StandardScaler(), LinearSVC()),
        RidgeClassifier(),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_a_classifier_predicts_like_its_estimator(
    tmp_path: Path, cancer: tuple[NDArray[Any], NDArray[Any]], estimator: Any
) -> None:
    rows, y = cancer
    app = ClassificationWorker(estimator, settings=settings(tmp_path)).app()
    assert ask(app, "POST", FIT).json() == {"fit": "ok"}
    own = estimator.fit(rows, y)
    answer = ask(app, "POST", PREDICT, json=body_of(rows)).json()
    assert answer["y_pred_rows"] == own.predict(rows).tolist()
    assert answer["classes"] == [0, 1]
    if hasattr(own, "predict_proba"):
        np.testing.assert_allclose(answer["y_proba_rows"], own.predict_proba(rows))
    else:
        assert np.array_equal(answer["y_proba_rows"], np.eye(2)[own.predict(rows)])
    shuffled = [f" X{i}" for i in range(rows.shape[1])][::-1]
    assert ask(app, "POST", PREDICT, json=body_of(rows[:, ::-1], shuffled)).json() == answer


def test_a_regressor_predicts_like_its_estimator_in_json_and_binary(
    tmp_path: Path, diabetes: tuple[NDArray[Any], NDArray[Any]]
) -> None:
    rows, y = diabetes
    estimator = DecisionTreeRegressor(max_depth=4, random_state=0)
    app = RegressionWorker(estimator, settings=settings(tmp_path)).app()
    ask(app, "POST", FIT)
    expected = estimator.fit(rows, y).predict(rows).tolist()
    assert ask(app, "POST", PREDICT, json=body_of(rows)).json() == {"y_pred_rows": expected}
    packed = wire.pack(body_of(rows) | {"X_pred_rows": rows})
    answer = ask(app, "POST", PREDICT, content=packed, headers=BINARY)
    assert wire.unpack(answer.content)["y_pred_rows"].tolist() == expected
    assert ask(app, "POST", PREDICT, json=body_of(rows[:0])).json() == {"y_pred_rows": []}


def test_text_labels_and_several_targets_are_predicted(tmp_path: Path) -> None:
    rows, y = load_breast_cancer(return_X_y=True)
    write_data(tmp_path / "tree1", rows, np.array(["sick", "well"])[y])
    app = ClassificationWorker(DecisionTreeClassifier(), settings=settings(tmp_path)).app()
    ask(app, "POST", FIT)
    for options in ({"json": body_of(rows[:3])}, {"content": wire.pack(body_of(rows[:3])), "headers": BINARY}):
        answer = ask(app, "POST", PREDICT, **options)
        value = wire.unpack(answer.content) if "headers" in options else answer.json()
        assert (value["classes"], value["y_pred_rows"]) == (["sick", "well"], ["sick"] * 3)
    write_data(tmp_path / "both", rows, rows[:, :2])
    app = RegressionWorker(LinearRegression(), settings=settings(tmp_path, "both")).app()
    ask(app, "POST", FIT)
    np.testing.assert_allclose(ask(app, "POST", PREDICT, json=body_of(rows[:4])).json()["y_pred_rows"], rows[:4, :2])


class Recording(RegressorMixin, BaseEstimator):
    """Records the rows that it was fitted to."""

    seen: list[NDArray[Any]] = []  # noqa: RUF012 - all copies of the estimator append to one list

    def fit(self, rows: NDArray[Any], y: NDArray[Any]) -> Recording:
        self.seen.append(np.column_stack([rows, y]))
        return self

    def predict(self, rows: NDArray[Any]) -> NDArray[Any]:
        return np.zeros(len(rows))


def test_bootstrap_samples_are_reproducible_and_differ_between_workers(
    tmp_path: Path, diabetes: tuple[NDArray[Any], NDArray[Any]]
) -> None:
    rows, y = diabetes
    whole = np.column_stack([rows, y])
    write_data(tmp_path / "tree2", rows, y)
    Recording.seen.clear()
    for name in ("tree1", "tree1", "tree2"):
        RegressionWorker(Recording(), bootstrap=True, settings=settings(tmp_path, name)).fit()
    first, again, other = Recording.seen
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    for drawn in (first, other):
        assert drawn.shape == whole.shape
        distinct = {tuple(row) for row in drawn.round(9)}
        assert distinct <= {tuple(row) for row in whole.round(9)}
        assert 0.55 < len(distinct) / len(whole) < 0.72  # 1 - 1/e


def test_predict_before_fit_is_409(tmp_path: Path, cancer: Any) -> None:
    app = ClassificationWorker(DecisionTreeClassifier(), settings=settings(tmp_path)).app()
    assert error_of(ask(app, "POST", PREDICT, json=body_of(cancer[0][:1])))[:2] == (409, "NotFittedError")
    assert ask(app, "GET", "/health").json()["fitted"] is False


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "the body has no 'X_pred_columns' and no 'X_pred_rows'"),
        ({"X_pred_columns": ["x0"]}, "no 'X_pred_rows'"),
        ({"X_pred_columns": ["x0", "y"], "X_pred_rows": [[1, 2]]}, "missing: 'x1'; unknown: 'y'"),
        ({"X_pred_columns": ["x0"], "X_pred_rows": [[1]]}, "missing: 'x1'"),
        ({"X_pred_columns": ["x0", "x1"], "X_pred_rows": [[1, "a"]]}, "X_pred_rows contains 'a'"),
        ([], "must be a JSON object"),
    ],
)
def test_an_invalid_body_is_422(tmp_path: Path, body: Any, message: str) -> None:
    write_data(tmp_path / "tree1", [[1, 2], [3, 4]], [0, 1])
    worker = RegressionWorker(LinearRegression(), settings=settings(tmp_path))
    worker.fit()
    status, name, text = error_of(ask(worker.app(), "POST", PREDICT, json=body))
    assert (status, name) == (422, "DataError")
    assert message in text


def test_predictions_that_are_not_finite_are_422(tmp_path: Path) -> None:
    write_data(tmp_path / "tree1", [[1], [2]], [1000, 2000])
    worker = RegressionWorker(LinearRegression(), settings=settings(tmp_path))
    worker.fit()
    body = {"X_pred_columns": ["x0"], "X_pred_rows": [[1e307]]}
    assert error_of(ask(worker.app(), "POST", PREDICT, json=body))[:2] == (422, "NonFiniteError")


def test_data_that_cannot_be_fitted_are_422(tmp_path: Path) -> None:
    app = ClassificationWorker(LogisticRegression(), settings=settings(tmp_path)).app()
    status, name, message = error_of(ask(app, "POST", FIT))
    assert (status, name) == (422, "DataError")
    assert "there is no" in message
    write_data(tmp_path / "tree1", [[1], [2]], ["a", "a"])
    message = error_of(ask(app, "POST", FIT))[2]
    assert message.startswith(
        f"LogisticRegression cannot be fitted to {tmp_path / 'tree1'}: ValueError: This solver needs"
    )
    write_data(tmp_path / "tree1", [[1], [2]], [[0, 1], [1, 0]])
    assert "must have one column of labels, not 2" in error_of(ask(app, "POST", FIT))[2]
    assert 'chimera_fits_total{result="error"} 3.0' in ask(app, "GET", "/metrics").text


def test_data_are_read_again_only_when_they_have_changed(tmp_path: Path) -> None:
    write_data(tmp_path / "tree1", [[1], [2]], [10, 20])
    worker = RegressionWorker(LinearRegression(), settings=settings(tmp_path))
    worker.fit()
    first = worker._data.read()
    assert worker._data.read() is first
    write_data(tmp_path / "tree1", [[1], [2]], [100, 200])
    worker.fit()
    answer = ask(worker.app(), "POST", PREDICT, json={"X_pred_columns": ["x0"], "X_pred_rows": [[3]]})
    np.testing.assert_allclose(answer.json()["y_pred_rows"], [300])
    (tmp_path / "tree1" / "y_train.csv").unlink()
    with pytest.raises(DataError, match="there is no"):
        worker.fit()


class Gated(ClassifierMixin, BaseEstimator):
    """An estimator whose fit waits for a semaphore, and that predicts the number of completed fits."""

    began, go = threading.Semaphore(0), threading.Semaphore(0)
    fits = 0

    def fit(self, rows: NDArray[Any], y: NDArray[Any]) -> Gated:
        type(self).began.release()
        assert type(self).go.acquire(timeout=30)
        type(self).fits += 1
        self.classes_, self.number = np.unique(y), type(self).fits
        return self

    def predict(self, rows: NDArray[Any]) -> NDArray[Any]:
        return np.full(len(rows), self.number)


def test_during_a_fit_a_second_is_409_and_predictions_use_the_previous_model(tmp_path: Path) -> None:
    write_data(tmp_path / "tree1", [[1], [2]], [1, 2])
    body = {"X_pred_columns": ["x0"], "X_pred_rows": [[0]]}
    own = settings(tmp_path)
    with (
        serving(ClassificationWorker(Gated(), settings=own).app(), own) as url,
        httpx.Client(base_url=url, timeout=30) as client,
    ):
        Gated.go.release()
        assert client.post(FIT).json() == {"fit": "ok"}
        assert Gated.began.acquire(timeout=30)
        answers: list[httpx.Response] = []
        second = threading.Thread(target=lambda: answers.append(httpx.post(url + FIT, timeout=30)))
        second.start()
        assert Gated.began.acquire(timeout=30)
        assert error_of(client.post(FIT))[:2] == (409, "BusyError")
        assert client.post(PREDICT, json=body).json()["y_pred_rows"] == [1]
        assert client.get("/health").json()["status"] == "ok"
        Gated.go.release()
        second.join(30)
        assert answers[0].json() == {"fit": "ok"}
        assert client.post(PREDICT, json=body).json()["y_pred_rows"] == [2]


def test_a_fit_whose_thread_cannot_start_is_503_and_does_not_prevent_the_next_one(tmp_path: Path) -> None:
    write_data(tmp_path / "tree1", [[1], [2]], [1, 2])
    app = ClassificationWorker(DecisionTreeClassifier(), settings=settings(tmp_path)).app()
    with no_new_threads():
        status, kind, message = error_of(ask(app, "POST", FIT))
    assert (status, kind) == (503, "UnavailableError")
    assert "cannot start a thread now (can't start new thread)" in message
    assert ask(app, "POST", FIT).json() == {"fit": "ok"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda own: ClassificationWorker(DecisionTreeRegressor(), settings=own), "needs a scikit-learn classifier"),
        (lambda own: RegressionWorker(DecisionTreeClassifier(), settings=own), "needs a scikit-learn regressor"),
        (lambda own: ClassificationWorker(DecisionTreeClassifier, settings=own), "it is a class: create an object"),
        (lambda own: RegressionWorker("tree", settings=own), "needs a scikit-learn regressor, not 'tree'"),
    ],
)
def test_an_estimator_of_the_wrong_kind_is_refused(tmp_path: Path, make: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make(settings(tmp_path))


def test_settings_are_read_when_the_worker_is_created(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("forest", "grove"):
        monkeypatch.setenv("CHIMERA_WORKER_NAME", name)
        worker = RegressionWorker(LinearRegression())
        assert (worker.name, worker.settings.worker_name) == (name, name)


@pytest.mark.long
def test_concurrent_requests_are_answered_separately(tmp_path: Path, diabetes: Any) -> None:
    rows, y = diabetes
    worker = RegressionWorker(LinearRegression(), settings=settings(tmp_path))
    worker.fit()
    expected = LinearRegression().fit(rows, y).predict(rows)
    app = worker.app()

    async def all_at_once() -> list[httpx.Response]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
            requests = [client.post(PREDICT, json=body_of(rows[begin : begin + 100])) for begin in range(300)]
            return list(await asyncio.gather(*requests))

    for begin, answer in enumerate(asyncio.run(all_at_once())):
        np.testing.assert_allclose(answer.json()["y_pred_rows"], expected[begin : begin + 100])

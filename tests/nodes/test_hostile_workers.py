"""Masters with workers that answer wrongly: such a worker fails alone, with a reason, and its failure is reported at once."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from chimera.engines.http import wire
from chimera.nodes.masters import AggregationMaster, ParameterServerMaster
from nodes.cluster import Behaviour, foreign_worker, linear_worker
from nodes.test_masters import AGGREGATION, SERVER, client_of, query, settings_for

LIMIT_S = 10.0
FIT, PREDICT = ("POST", "/v1/chimera/model/fit"), ("POST", "/v1/chimera/model/predict")
SAMPLE, STEP = ("GET", "/v1/chimera/sgd/request-data-sample"), ("POST", "/v1/chimera/sgd/fit-step")
Routes = dict[tuple[str, str], Behaviour]

COLUMNS = ["a", "b"]
ROWS = np.random.default_rng(0).normal(size=(20, 2))
TARGETS = ROWS.sum(1)


@contextlib.contextmanager
def ports_of(*workers: Routes) -> Iterator[list[int]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(foreign_worker(worker)) for worker in workers]


def predicting(answer: Any) -> Routes:
    def behave(handler: Any, _: Any) -> Any:
        if isinstance(answer, bytes):
            handler.answer(200, answer, wire.CONTENT_TYPE)
            return None
        return answer

    return {FIT: lambda *_: {"fit": "ok"}, PREDICT: behave}


def sampled(sample: Any = None, step: Any = None) -> Routes:
    """Return a linear worker with changes of its data sample and of its steps."""
    routes = linear_worker(COLUMNS, ROWS, TARGETS)
    whole = routes[SAMPLE](None, {})  # type: ignore[arg-type] # the behaviour does not use it

    def behave(handler: Any, _: Any) -> Any:
        if isinstance(sample, bytes):
            handler.answer(200, sample, wire.CONTENT_TYPE)
            return None
        return {**whole, **(sample or {})}

    return {**routes, SAMPLE: behave} | ({} if step is None else {STEP: lambda *_: step})


def predicted(*workers: Routes) -> dict[str, Any]:
    """Return the body of a prediction for one row by an aggregation."""
    with ports_of(*workers) as ports, client_of(AggregationMaster(settings=settings_for(*ports))) as client:
        return dict(client.post(f"{AGGREGATION}/predict", json=query(["a"], [[1.0]])).json())


def fitted(*workers: Routes, kind: Any = "regressor", **settings: Any) -> tuple[int, dict[str, Any]]:
    """Return status and body of a fit by a parameter server."""
    options: dict[str, Any] = {"exact_gradient": True, "learning_rate": "constant", "eta0": 0.1, "max_iter": 3}
    with ports_of(*workers) as ports:
        master = ParameterServerMaster(kind, settings=settings_for(*ports, **settings), **options)
        with client_of(master) as client:
            answer = client.post(f"{SERVER}/fit")
            return answer.status_code, answer.json()


CLASSES = {"y_pred_rows": [0], "classes": [0, 1], "y_proba_rows": [[0.25, 0.75]]}


@pytest.mark.parametrize(
    ("answer", "good", "why"),
    [
        ({"y_pred_rows": 1.0}, {"y_pred_rows": [2.0]}, "y_pred_rows must be a list of numbers"),
        ({"y_pred_rows": ["1.5"]}, {"y_pred_rows": [2.0]}, "y_pred_rows contains '1.5'"),
        ({"y_pred_rows": [[[1.0]]]}, {"y_pred_rows": [2.0]}, "y_pred_rows has the shape (1, 1, 1)"),
        (wire.pack({"y_pred_rows": [10**400]}), {"y_pred_rows": [2.0]}, "y_pred_rows contains numbers beyond"),
        (CLASSES | {"y_pred_rows": 0}, CLASSES, "y_pred_rows must be a list"),
        (CLASSES | {"classes": {"a": 1, "b": 2}}, CLASSES, "classes must be a list"),
        (CLASSES | {"classes": [0, 0]}, CLASSES, "without repetition"),
        (CLASSES | {"classes": [0, "b"]}, CLASSES, "classes must be texts, or finite numbers"),
        (wire.pack(CLASSES | {"classes": [float("nan"), 1]}), CLASSES, "classes must be texts, or finite numbers"),
        (CLASSES | {"y_proba_rows": [[-1e300, 1e300]]}, CLASSES, "its probabilities are not between 0 and 1"),
    ],
)
def test_an_invalid_prediction_fails_its_worker_only(answer: Any, good: Any, why: str) -> None:
    body = predicted(predicting(answer), predicting(good))
    outcome = body.pop("workers")
    assert outcome["w1"] == {"predict": "ok"}
    assert why in outcome["w0"]["why"]
    assert body == (good if "classes" not in good else good | {"y_pred_rows": [0.75]})


def test_labels_of_another_kind_than_those_of_the_first_worker_are_left_out() -> None:
    texts = {"y_pred_rows": ["a"], "classes": ["a", "b"], "y_proba_rows": [[0.5, 0.5]]}
    body = predicted(predicting(CLASSES), predicting(texts))
    assert body["y_pred_rows"] == [0.75]
    assert "its classes are texts, but those of the first worker numbers" in body["workers"]["w1"]["why"]


def test_the_mean_of_finite_values_is_finite() -> None:
    large = predicting({"y_pred_rows": [1.7e308]})
    assert predicted(large, large)["y_pred_rows"] == [1.7e308]


@pytest.mark.parametrize(
    ("sample", "why"),
    [
        ({"X_train_sample_columns": "ab"}, "must be a list of names"),
        ({"X_train_sample_columns": []}, "at least one"),
        ({"X_train_sample_columns": ["a", "A "]}, "repeated: 'a'"),
        ({"y_train_sample_rows": {"a": 1}}, "must be a list of rows"),
        ({"exact_gradient": "yes"}, "exact_gradient must be true or false"),
        ({"weights": [1e300, 0, 0]}, "weights contains inf"),
        (wire.pack(sampled()[SAMPLE](None, {}) | {"weights": [float("nan")] * 3}), "weights contains nan"),  # type: ignore[arg-type]
    ],
)
def test_an_invalid_sample_fails_its_worker_only(sample: Any, why: str) -> None:
    status, body = fitted(sampled(sample), sampled())
    assert (status, body["workers"]["w1"]) == (200, {"fit": "ok"})
    assert body["workers"]["w0"]["why"].startswith("no data sample: w0 at http://localhost:")
    assert why in body["workers"]["w0"]["why"]
    assert "has no result" not in body["workers"]["w0"]["why"]


def test_texts_in_a_step_fail_its_worker_only() -> None:
    _, body = fitted(sampled(), sampled(step={"weights_gradients": [["1", "2"]], "bias_gradient": [0.0]}))
    assert body["workers"]["w0"] == {"fit": "ok"}
    assert "'1' is not a number" in body["workers"]["w1"]["why"]


def test_labels_of_another_kind_drop_a_worker() -> None:
    numbers, texts = sampled({"y_train_sample_rows": [[0], [1]]}), sampled({"y_train_sample_rows": [["a"], ["b"]]})
    _, body = fitted(numbers, texts, kind="classifier")
    why = "its labels are texts, but those of w0 are numbers"
    assert body["workers"] == {"w0": {"fit": "ok"}, "w1": {"fit": "failed", "why": why}}


def test_a_classifier_without_labels_is_an_error() -> None:
    status, body = fitted(sampled({"y_train_sample_rows": []}), kind="classifier")
    assert (status, body["message"]) == (422, "no worker reports a label: a classifier needs two classes")


def test_a_model_that_fits_into_no_request_is_refused() -> None:
    many = sampled({"y_train_sample_rows": [[number] for number in range(100)]})
    status, body = fitted(many, kind="classifier", max_body_bytes=1024)
    assert status == 422
    assert "the model of 2 columns and 100 outputs has 300 parameters" in body["message"]


def test_a_network_returns_one_label_of_its_classes_for_each_row() -> None:
    network = {
        **sampled(
            {"weights": [0.0] * 3, "y_train_sample_rows": [[0], [1]]},
            {"weights_gradients": [0.0] * 3, "bias_gradient": []},
        ),
    }
    wrong = predicting(CLASSES | {"y_pred_rows": [7]})[PREDICT]
    short = predicting(CLASSES | {"y_pred_rows": [], "y_proba_rows": []})[PREDICT]
    with ports_of({**network, PREDICT: wrong}, {**network, PREDICT: short}) as ports:
        master = ParameterServerMaster(
            "classifier", settings=settings_for(*ports), max_iter=1, learning_rate="constant", eta0=0.1
        )
        with client_of(master) as client:
            assert client.post(f"{SERVER}/fit").status_code == 200
            answer = client.post(f"{SERVER}/predict", json=query(COLUMNS, [[1.0, 2.0]]))
    assert answer.status_code == 503
    assert "labels that are not in classes" in answer.json()["message"]
    assert "it returned 0 predictions for 1 rows" in answer.json()["message"]


class Seen(logging.Handler):
    """Sets an event when the status log receives a line with a text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text, self.event = text, threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self._text in record.getMessage():
            self.event.set()


@pytest.fixture
def refusal_of_w1() -> Iterator[Seen]:
    handler = Seen("w1: fit failed: ")
    logging.getLogger("chimera_status").addHandler(handler)
    yield handler
    logging.getLogger("chimera_status").removeHandler(handler)


def refuse(handler: Any, _: Any) -> None:
    handler.answer(422, b'{"message": "no rows", "details": {"errorCode": 422, "errorMessage": "DataError"}}')


@pytest.mark.parametrize("kind", ["aggregation", "parameter-server"])
def test_a_refusal_is_reported_while_other_workers_work(kind: str, refusal_of_w1: Seen, capsys: Any) -> None:
    in_time: list[bool] = []
    route = FIT if kind == "aggregation" else SAMPLE
    slow = sampled() | {FIT: lambda *_: {"fit": "ok"}}
    answer = slow[route]

    def wait_for_report(handler: Any, body: Any) -> Any:
        in_time.append(refusal_of_w1.event.wait(LIMIT_S))
        return answer(handler, body)

    with ports_of(slow | {route: wait_for_report}, {route: refuse}) as ports:
        settings = settings_for(*ports)
        master: Any = (
            AggregationMaster(settings=settings)
            if kind == "aggregation"
            else ParameterServerMaster("regressor", settings=settings, exact_gradient=True, max_iter=1)
        )
        with client_of(master) as client:
            body = client.post(f"/v1/chimera/{kind}/fit").json()
    assert in_time == [True]
    assert "answered 422 (DataError): no rows" in body["workers"]["w1"]["why"]
    assert capsys.readouterr().err.count("w1: fit failed: ") == 1


def test_a_fit_that_fails_is_reported_on_the_console(capsys: Any) -> None:
    status, body = fitted({SAMPLE: refuse}, {SAMPLE: refuse})
    console = capsys.readouterr().err
    assert status == 503
    assert "w0: no data sample: w0 at http://localhost:" in body["message"]
    assert f"chimera: the fit failed: {body['message']}\n" in console
    assert console.count("fit failed: no data sample") == 2

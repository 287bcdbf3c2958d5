"""Masters with real and fake workers: correct models, also when some workers fail."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.linear_model import SGDClassifier, SGDRegressor
from sklearn.preprocessing import StandardScaler

from chimera.nodes.masters import AggregationMaster, ParameterServerMaster
from chimera.nodes.settings import read_settings
from chimera.utils import parse_times_file
from nodes.cluster import Behaviour, foreign_worker, linear_worker, workers
from nodes.served import ask, error_of, free_port, no_new_threads, write_data

AGGREGATION, SERVER = "/v1/chimera/aggregation", "/v1/chimera/parameter-server"
REGRESSION: dict[str, Any] = {
    "exact_gradient": True,
    "learning_rate": "constant",
    "eta0": 0.4,
    "max_iter": 400,
}


@pytest.fixture(autouse=True)
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Any:
    monkeypatch.chdir(tmp_path)
    for name in ("chimera_status", "chimera_time"):
        caplog.set_level(logging.INFO, name)
    return caplog


def settings_for(*ports: int, **options: Any) -> Any:
    given: dict[str, Any] = {"workers_endpoints_timeout": 30.0, **options}
    names = [f"w{number}" for number in range(len(ports))]
    return read_settings(
        workers_nodes_names=names, workers_mapped_ports=list(ports), workers_cpu_shares=[2] * len(ports), **given
    )


def diabetes() -> tuple[list[str], Any, Any]:
    data = load_diabetes()
    return [f"c{i}" for i in range(10)], StandardScaler().fit_transform(data.data), data.target


def query(columns: list[str], rows: Any) -> dict[str, Any]:
    return {"X_pred_columns": columns, "X_pred_rows": np.asarray(rows).tolist()}


def r2(predicted: Any, targets: Any) -> float:
    return 1 - float(np.mean((np.array(predicted) - targets) ** 2) / np.var(targets))


@pytest.fixture(scope="module")
def two_regressions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[int]]:
    """Run two SGD workers on the halves of diabetes, with their columns in different orders."""
    root = tmp_path_factory.mktemp("regressions")
    columns, rows, targets = diabetes()
    write_data(root / "chimera_train_data/w0", rows[::2], targets[::2], columns)
    write_data(
        root / "chimera_train_data/w1", rows[1::2, ::-1], targets[1::2], [c.upper() + " " for c in columns[::-1]]
    )
    with workers(
        root, **dict.fromkeys(("w0", "w1"), "SGDWorker('regressor', exact_gradient=True, alpha=1e-6)")
    ) as started:
        yield [worker.port for worker in started.values()]


class Client:
    """Sends requests to a master's app without a server."""

    def __init__(self, master: Any) -> None:
        self._app = master.app()

    def post(self, path: str, **options: Any) -> httpx.Response:
        async def request() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                return await client.post(path, **options)

        return asyncio.run(request())


@contextlib.contextmanager
def client_of(master: Any) -> Iterator[Client]:
    try:
        yield Client(master)
    finally:
        master.close()


def test_a_regression_equals_that_of_a_single_machine(two_regressions: list[int], log: Any) -> None:
    columns, rows, targets = diabetes()
    master = ParameterServerMaster("regressor", settings=settings_for(*two_regressions), **REGRESSION)
    with client_of(master) as client:
        assert client.post(f"{SERVER}/predict", json=query(columns, rows)).status_code == 409
        answer = client.post(f"{SERVER}/fit")
        fitted = {"fit": "ok", "workers": {"w0": {"fit": "ok"}, "w1": {"fit": "ok"}}}
        assert (answer.status_code, answer.json()) == (200, fitted)
        shuffled = client.post(f"{SERVER}/predict", json=query([c.upper() for c in columns[::-1]], rows[:, ::-1]))
        wrong = client.post(f"{SERVER}/predict", json=query(["d", *columns[1:]], rows[:2]))
    alone = SGDRegressor(alpha=1e-6, max_iter=2000, tol=1e-6, random_state=0).fit(rows, targets)
    assert r2(shuffled.json()["y_pred_rows"], targets) > 0.99 * alone.score(rows, targets)
    assert wrong.status_code == 422
    assert "'d'" in wrong.json()["message"]
    latencies = [record.getMessage() for record in log.records if record.name == "chimera_time"]
    Path("times.log").write_text("\n".join(latencies))
    times = parse_times_file("times.log")["worker"]
    step = "/v1/chimera/sgd/fit-step"
    assert [len(times[f"http://localhost:{port}{step}"]) for port in two_regressions] == [400, 400]


def test_a_fit_stops_when_the_gradient_is_small(two_regressions: list[int], log: Any) -> None:
    master = ParameterServerMaster("regressor", epsilon=1.0, settings=settings_for(*two_regressions), **REGRESSION)
    master.fit()
    (line,) = [record.getMessage() for record in log.records if "is over" in record.getMessage()]
    assert 3 < int(line.split()[0]) < 300


@pytest.mark.long
def test_workers_may_lack_one_of_three_classes(tmp_path: Path) -> None:
    data = load_iris()
    rows, labels = StandardScaler().fit_transform(data.data), data.target_names[data.target]
    columns = ["a", "b", "c", "d"]
    kept = data.target != 2
    write_data(tmp_path / "chimera_train_data/w0", rows[kept], labels[kept], columns)
    write_data(tmp_path / "chimera_train_data/w1", rows[~kept], labels[~kept], columns)
    expression = "SGDWorker('classifier', exact_gradient=True, loss='log_loss')"
    with workers(tmp_path, w0=expression, w1=expression) as started:
        options: dict[str, Any] = {"learning_rate": "constant", "eta0": 1.0, "max_iter": 800, "loss": "log_loss"}
        ports = [worker.port for worker in started.values()]
        master = ParameterServerMaster("classifier", settings=settings_for(*ports), **options)
        with client_of(master) as client:
            assert client.post(f"{SERVER}/fit").json()["fit"] == "ok"
            body = client.post(f"{SERVER}/predict", json=query(columns, rows)).json()
    assert body["classes"] == ["setosa", "versicolor", "virginica"]
    assert np.mean(np.array(body["y_pred_rows"]) == labels) > 0.93
    np.testing.assert_allclose(np.sum(body["y_proba_rows"], axis=1), 1)


@pytest.mark.long
def test_a_classifier_of_two_classes_is_as_accurate_as_on_a_single_machine(tmp_path: Path) -> None:
    data = load_breast_cancer()
    rows, columns = StandardScaler().fit_transform(data.data), [f"c{i}" for i in range(30)]
    for place in range(2):
        folder = tmp_path / f"chimera_train_data/w{place}"
        write_data(folder, rows[place::2], data.target[place::2], columns)
    expression = "SGDWorker('classifier', exact_gradient=True, loss='log_loss')"
    with workers(tmp_path, w0=expression, w1=expression) as started:
        options: dict[str, Any] = {"learning_rate": "adaptive", "eta0": 0.5, "max_iter": 500, "loss": "log_loss"}
        ports = [worker.port for worker in started.values()]
        master = ParameterServerMaster("classifier", settings=settings_for(*ports), **options)
        with client_of(master) as client:
            client.post(f"{SERVER}/fit")
            body = client.post(f"{SERVER}/predict", json=query(columns, rows)).json()
    alone = SGDClassifier(loss="log_loss", random_state=0).fit(rows, data.target)
    assert body["classes"] == [0, 1]
    assert np.mean(np.array(body["y_pred_rows"]) == data.target) > alone.score(rows, data.target) - 0.01


def hang(_: Any, __: Any) -> None:
    threading.Event().wait(60)


def garbage(handler: Any, _: Any) -> None:
    handler.wfile.write(b"\x00\x01 what is this?\r\n\r\n")
    handler.close_connection = True


def wrong_type(handler: Any, _: Any) -> None:
    handler.answer(200, b"<html>", "text/html")


def wrong_shape(_: Any, __: Any) -> Any:
    return {"weights_gradients": [1.0, 2.0], "bias_gradient": [0.0]}


def failing(handler: Any, _: Any) -> None:
    body = b'{"message": "my disk is full", "details": {"errorCode": 500, "errorMessage": "OSError"}}'
    handler.answer(500, body)


def traceback(handler: Any, _: Any) -> None:
    handler.answer(500, b"Internal Server Error", "text/plain")


def after(calls: int, then: Behaviour, before: Behaviour) -> Behaviour:
    """Return a behaviour that changes from ``before`` to ``then`` after some calls."""
    left = [calls]

    def behave(handler: Any, body: Any) -> Any:
        left[0] -= 1
        return (then if left[0] < 0 else before)(handler, body)

    return behave


STEP, SAMPLE = ("POST", "/v1/chimera/sgd/fit-step"), ("GET", "/v1/chimera/sgd/request-data-sample")
BAD = [
    (hang, "took longer than 1 s"),
    (garbage, "an invalid answer"),
    (wrong_type, "text/html"),
    (wrong_shape, "cannot be used"),
    (failing, "my disk is full"),
    (traceback, "Internal Server Error"),
]


@pytest.mark.parametrize(("bad", "why"), BAD, ids=[behaviour.__name__ for behaviour, _ in BAD])
def test_a_worker_that_fails_during_a_fit_is_dropped_and_named(
    bad: Behaviour, why: str, log: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    columns, rows, targets = diabetes()
    good, routes = (linear_worker(columns, rows[half::2], targets[half::2]) for half in range(2))
    routes[STEP] = after(5, bad, routes[STEP])
    with foreign_worker(good) as port, foreign_worker(routes) as other:
        settings = settings_for(port, other, workers_endpoints_timeout=1.0)
        master = ParameterServerMaster("regressor", settings=settings, **(REGRESSION | {"max_iter": 60}))
        with client_of(master) as client:
            fitted = client.post(f"{SERVER}/fit").json()
            body = client.post(f"{SERVER}/predict", json=query(columns, rows)).json()
    assert (fitted["fit"], fitted["workers"]["w0"]) == ("ok", {"fit": "ok"})
    assert fitted["workers"]["w1"]["fit"] == "failed"
    assert why in fitted["workers"]["w1"]["why"]
    assert "w1: fit failed: " in capsys.readouterr().err
    assert r2(body["y_pred_rows"], targets) > 0.4
    warnings = [record.getMessage() for record in log.records if record.levelno == logging.WARNING]
    assert [line for line in warnings if "w1" in line and f"localhost:{other}" in line and why in line]
    assert not [line for line in warnings if "w0" in line]


@pytest.mark.long
def test_a_worker_that_is_killed_during_a_fit_is_dropped_and_named(tmp_path: Path, log: Any) -> None:
    columns, rows, targets = diabetes()
    good = linear_worker(columns, rows[::2], targets[::2])
    write_data(tmp_path / "chimera_train_data/w1", rows[1::2], targets[1::2], columns)
    with workers(tmp_path, w1="SGDWorker('regressor', exact_gradient=True)") as started:

        def step_and_kill(handler: Any, body: Any) -> Any:
            steps.append(1)
            if len(steps) == 20:
                started["w1"].kill()
            return step(handler, body)

        step, steps = good[STEP], list[int]()
        with foreign_worker(good | {STEP: step_and_kill}) as port:
            master = ParameterServerMaster(
                "regressor", settings=settings_for(port, started["w1"].port), **(REGRESSION | {"max_iter": 60})
            )
            master.fit()
    assert master.fitted
    warnings = [record.getMessage() for record in log.records if record.levelno == logging.WARNING]
    assert [line for line in warnings if "w1" in line and "lost" in line]


@pytest.mark.parametrize("bad", [hang, failing], ids=["hang", "fail"])
def test_a_fit_fails_in_time_when_all_workers_fail(bad: Behaviour) -> None:
    columns, rows, targets = diabetes()
    routes = linear_worker(columns, rows, targets) | {STEP: bad}
    with foreign_worker(routes) as one, foreign_worker(routes) as other:
        settings = settings_for(one, other, workers_endpoints_timeout=1.0)
        with client_of(ParameterServerMaster("regressor", settings=settings, **REGRESSION)) as client:
            began_s = time.monotonic()
            answer = client.post(f"{SERVER}/fit")
    assert time.monotonic() - began_s < 5.0
    assert answer.status_code == 503
    body = answer.json()
    assert body["details"] == {"errorCode": 503, "errorMessage": "AllWorkersFailed"}
    for named in ("w0", "w1", str(one), str(other)):
        assert named in body["message"]


@pytest.mark.parametrize("path", [AGGREGATION, SERVER])
def test_unreachable_workers_are_all_named(path: str) -> None:
    settings = settings_for(free_port(), free_port())
    kind: Any = (
        AggregationMaster
        if path == AGGREGATION
        else lambda settings: ParameterServerMaster("regressor", settings=settings)
    )
    with client_of(kind(settings=settings)) as client:
        answer = client.post(f"{path}/fit")
    assert answer.status_code == 503
    assert answer.json()["message"].count("refused") == 2


def test_a_fit_continues_with_the_workers_that_answer(log: Any) -> None:
    columns, rows, targets = diabetes()
    with foreign_worker(linear_worker(columns, rows, targets)) as good, foreign_worker({SAMPLE: failing}) as bad:
        ParameterServerMaster("regressor", settings=settings_for(bad, good), **(REGRESSION | {"max_iter": 5})).fit()
    assert "my disk is full" in log.text


def test_a_second_concurrent_fit_is_refused() -> None:
    columns, rows, targets = diabetes()
    release, began = threading.Event(), threading.Event()
    routes = linear_worker(columns, rows, targets)
    sample = routes[SAMPLE]

    def wait(*arguments: Any) -> Any:
        began.set()
        release.wait(20)
        return sample(*arguments)

    with foreign_worker(routes | {SAMPLE: wait}) as port:
        master = ParameterServerMaster("regressor", settings=settings_for(port), **(REGRESSION | {"max_iter": 3}))
        with client_of(master) as client:
            statuses: list[int] = []
            first = threading.Thread(target=lambda: statuses.append(client.post(f"{SERVER}/fit").status_code))
            first.start()
            assert began.wait(20)
            assert client.post(f"{SERVER}/fit").status_code == 409
            release.set()
            first.join()
    assert statuses == [200]


def test_a_fit_whose_thread_cannot_start_is_503_and_does_not_prevent_the_next_one() -> None:
    columns, rows, targets = diabetes()
    with foreign_worker(linear_worker(columns, rows, targets)) as port:
        master = ParameterServerMaster("regressor", settings=settings_for(port), **(REGRESSION | {"max_iter": 3}))
        app = master.app()
        with no_new_threads():
            assert error_of(ask(app, "POST", f"{SERVER}/fit"))[:2] == (503, "UnavailableError")
        assert ask(app, "POST", f"{SERVER}/fit").status_code == 200
        master.close()


@pytest.fixture(scope="module")
def three_trees(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[int]]:
    """Run three trees on parts of breast-cancer; the third has no data."""
    root = tmp_path_factory.mktemp("trees")
    data = load_breast_cancer()
    columns = [f"c{i}" for i in range(30)]
    for place in range(2):
        write_data(root / f"chimera_train_data/w{place}", data.data[place::2], data.target[place::2], columns)
    expression = (
        "ClassificationWorker(__import__('sklearn.tree').tree.DecisionTreeClassifier(max_depth=5, random_state=0))"
    )
    with workers(root, w0=expression, w1=expression, w2=expression) as started:
        yield [worker.port for worker in started.values()]


@pytest.mark.long
def test_bagging_continues_with_the_workers_that_answer(three_trees: list[int], log: Any) -> None:
    data, columns = load_breast_cancer(), [f"c{i}" for i in range(30)]
    with client_of(AggregationMaster(settings=settings_for(*three_trees))) as client:
        assert client.post(f"{AGGREGATION}/predict", json=query(columns, data.data[:2])).status_code == 409
        assert client.post(f"{AGGREGATION}/fit").json()["fit"] == "ok"
        body = client.post(f"{AGGREGATION}/predict", json=query(columns, data.data)).json()
        none = client.post(f"{AGGREGATION}/predict", json=query(columns, np.empty((0, 30)))).json()
        wrong = client.post(f"{AGGREGATION}/predict", json=query(["x", *columns[1:]], data.data[:2]))
        ragged = client.post(f"{AGGREGATION}/predict", json={"X_pred_columns": columns, "X_pred_rows": [[1], [1, 2]]})
    assert (wrong.status_code, ragged.status_code) == (422, 422)
    assert "'x'" in wrong.json()["message"]
    assert none["y_pred_rows"] == []
    probabilities = np.array(body["y_proba_rows"])
    np.testing.assert_allclose(probabilities[:, 1], body["y_pred_rows"])
    assert body["classes"] == [0, 1]
    assert np.mean((probabilities[:, 1] > 0.5) == data.target) > 0.92
    warnings = [record.getMessage() for record in log.records if record.levelno == logging.WARNING]
    assert [
        line
        for line in warnings
        if f"localhost:{three_trees[2]}" in line and "fit failed" in line and "X_train.csv" in line
    ]


def test_a_failed_worker_is_named_with_the_reason_in_the_answer_and_on_stderr(
    three_trees: list[int], log: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    data, columns = load_breast_cancer(), [f"c{i}" for i in range(30)]
    with client_of(AggregationMaster(settings=settings_for(*three_trees))) as client:
        fitted = client.post(f"{AGGREGATION}/fit").json()
        console = capsys.readouterr().err
        bodies = [client.post(f"{AGGREGATION}/predict", json=query(columns, data.data[:2])).json() for _ in range(2)]
    assert fitted["fit"] == "ok"
    assert [each["fit"] for each in fitted["workers"].values()] == ["ok", "ok", "failed"]
    assert "X_train.csv" in fitted["workers"]["w2"]["why"]
    assert "fitted by 2 of 3 workers: w0, w1" in console
    assert "w2: fit failed: " in console
    for body in bodies:
        assert [each["predict"] for each in body["workers"].values()] == ["ok", "ok", "failed"]
    assert capsys.readouterr().err.count("w2: predict failed: ") == 1  # not at each request
    assert log.text.count("w2: predict failed: ") == 2


def predicting(answer: Any) -> dict[tuple[str, str], Behaviour]:
    return {
        ("POST", "/v1/chimera/model/fit"): lambda *_: {"fit": "ok"},
        ("POST", "/v1/chimera/model/predict"): lambda *_: answer,
    }


outcomes: list[Any] = []  # outcomes of the workers, for each request


def averaged_of(*answers: Any) -> Any:
    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(foreign_worker(predicting(answer))) for answer in answers]
        client = stack.enter_context(client_of(AggregationMaster(settings=settings_for(*ports))))
        body: dict[str, Any] = client.post(f"{AGGREGATION}/predict", json=query(["a"], [[1.0], [2.0]])).json()
        outcomes.append(body.pop("workers"))
        return body


def test_values_are_averaged() -> None:
    assert averaged_of({"y_pred_rows": [1.0, 2.0]}, {"y_pred_rows": [3, 5]}) == {"y_pred_rows": [2.0, 3.5]}


def test_classes_that_a_worker_lacks_count_nothing_for_it() -> None:
    one = {"y_pred_rows": ["a", "b"], "classes": ["a", "b"], "y_proba_rows": [[1.0, 0.0], [0.4, 0.6]]}
    other = {"y_pred_rows": ["c", "b"], "classes": ["b", "c"], "y_proba_rows": [[0.1, 0.9], [0.7, 0.3]]}
    body = averaged_of(one, other)
    assert (body["classes"], body["y_pred_rows"]) == (["a", "b", "c"], ["a", "b"])
    np.testing.assert_allclose(body["y_proba_rows"], [[0.5, 0.05, 0.45], [0.2, 0.65, 0.15]])


@pytest.mark.long
def test_a_restarted_worker_is_called_again(tmp_path: Path, log: Any) -> None:
    columns, rows, targets = diabetes()
    for name in ("w0", "w1"):
        write_data(tmp_path / f"chimera_train_data/{name}", rows, targets, columns)
    expression = "RegressionWorker(__import__('sklearn.linear_model').linear_model.LinearRegression())"
    with workers(tmp_path, w0=expression, w1=expression) as started:
        ports = [worker.port for worker in started.values()]
        with client_of(AggregationMaster(settings=settings_for(*ports))) as client:
            client.post(f"{AGGREGATION}/fit")
            whole = client.post(f"{AGGREGATION}/predict", json=query(columns, rows[:3])).json()
            started["w1"].kill()
            half = client.post(f"{AGGREGATION}/predict", json=query(columns, rows[:3])).json()
            assert half["y_pred_rows"] == whole["y_pred_rows"]
            assert half["workers"]["w1"]["predict"] == "failed"
            warnings = [record.getMessage() for record in log.records if record.levelno == logging.WARNING]
            assert [line for line in warnings if f"localhost:{ports[1]}" in line and "lost" in line]
            started["w1"].start()
            started["w1"].await_health()
            log.clear()
            assert client.post(f"{AGGREGATION}/fit").json()["fit"] == "ok"
            assert "fitted by 2 of 2 workers" in log.text


def test_invalid_predictions_are_left_out(log: Any) -> None:
    answers = {"y_pred_rows": [1.0, 2.0]}, {"y_pred_rows": [9.0]}, {"y_pred_rows": ["x", "y"]}, {}
    assert averaged_of(*answers) == {"y_pred_rows": [1.0, 2.0]}
    assert "1 predictions for 2 rows" in log.text
    assert [each["predict"] for each in outcomes[-1].values()] == ["ok", "failed", "failed", "failed"]
    assert "1 predictions for 2 rows" in outcomes[-1]["w1"]["why"]


@pytest.mark.long
def test_a_parameter_server_trains_a_network(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    columns, rows, targets = diabetes()
    for place in range(2):
        folder = tmp_path / f"chimera_train_data/w{place}"
        write_data(folder, rows[place::2], (targets[place::2] - 150) / 80, columns)
    expression = "TorchWorker('mlp', 'mse')"
    with workers(tmp_path, w0=expression, w1=expression) as started:
        ports = [worker.port for worker in started.values()]
        options: dict[str, Any] = {"learning_rate": "constant", "eta0": 0.1, "max_iter": 150}
        with client_of(ParameterServerMaster("regressor", settings=settings_for(*ports), **options)) as client:
            assert client.post(f"{SERVER}/fit").json()["fit"] == "ok"
            body = client.post(f"{SERVER}/predict", json=query(columns, rows)).json()
    assert r2(np.ravel(body["y_pred_rows"]), (targets - 150) / 80) > 0.4

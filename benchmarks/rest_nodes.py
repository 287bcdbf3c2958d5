"""REST nodes on this machine: Chimera's masters, the straightforward design, and the cost of the work alone.

Two workers own 10,000 rows of 30 columns each. A parameter-server iteration sends the coefficients to both and averages the two
gradients; a prediction calls both for one row and for 1,000. The straightforward design is a FastAPI worker with pydantic
models, pandas frames and JSON of Python floats, and a master that calls each worker from a thread with a new ``requests``
session per call. "Pure" is one pass of ``partial_fit`` over a worker's rows plus one round trip of HTTP without data. The
variants alternate; the table shows medians over the repetitions. Run it on an idle machine with two cores or more::

    python benchmarks/rest_nodes.py [--turns 5] [--iterations 200] [--predictions 30]
"""

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROWS, COLUMNS, WORKERS = 20_000, 30, 2
NAMES = [f"c{i}" for i in range(COLUMNS)]
STEP, PREDICT = "/v1/chimera/sgd/fit-step", "/v1/chimera/model/predict"


def make_data(folder: Path) -> None:
    import numpy as np
    import pandas as pd

    rng = np.random.default_rng(0)
    rows = rng.normal(size=(ROWS, COLUMNS))
    targets = rows @ rng.normal(size=COLUMNS) + rng.normal(size=ROWS)
    for place in range(WORKERS):
        own = folder / f"w{place}"
        own.mkdir()
        pd.DataFrame(rows[place::WORKERS], columns=NAMES).to_csv(own / "X_train.csv", index=False)
        pd.DataFrame(targets[place::WORKERS], columns=["y"]).to_csv(own / "y_train.csv", index=False)


def serve_plain(folder: str, name: str, port: str) -> None:
    """Serve a worker of the straightforward design."""
    import pandas as pd
    import uvicorn
    from fastapi import FastAPI
    from pydantic import BaseModel
    from sklearn.linear_model import LinearRegression, SGDRegressor

    inputs = pd.read_csv(Path(folder) / name / "X_train.csv")
    targets = pd.read_csv(Path(folder) / name / "y_train.csv")["y"]
    model = LinearRegression().fit(inputs, targets)

    class Weights(BaseModel):
        weights: list[float]
        bias: list[float]

    class Query(BaseModel):
        X_pred_columns: list[str]
        X_pred_rows: list[list[float]]

    app = FastAPI()

    @app.post(STEP)
    def step(body: Weights) -> dict[str, list[float]]:
        import numpy as np

        estimator = SGDRegressor(learning_rate="constant", eta0=1e-6, shuffle=False, penalty=None)
        estimator.partial_fit(inputs.iloc[:1], targets.iloc[:1])
        estimator.coef_, estimator.intercept_ = np.array(body.weights), np.array(body.bias)
        estimator.partial_fit(inputs, targets)
        scale = 1e-6 * len(inputs)
        change = (np.array(body.weights) - estimator.coef_) / scale
        return {
            "weights_gradients": change.tolist(),
            "bias_gradient": ((np.array(body.bias) - estimator.intercept_) / scale).tolist(),
        }

    @app.post(PREDICT)
    def predict(body: Query) -> dict[str, list[float]]:
        frame = pd.DataFrame(body.X_pred_rows, columns=body.X_pred_columns)
        return {"y_pred_rows": [float(value) for value in model.predict(frame)]}

    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="error", access_log=False)


def serve_plain_master(ports: str, port: str) -> None:
    """Serve a master of the straightforward design."""
    import pandas as pd
    import uvicorn
    from fastapi import FastAPI
    from pydantic import BaseModel

    urls = [f"http://localhost:{each}" for each in ports.split(",")]

    class Query(BaseModel):
        X_pred_columns: list[str]
        X_pred_rows: list[list[float]]

    app = FastAPI()

    @app.post("/predict")
    def predict(body: Query) -> dict[str, list[float]]:
        frame = pd.DataFrame(body.X_pred_rows, columns=body.X_pred_columns)
        document = {"X_pred_columns": list(frame.columns), "X_pred_rows": frame.values.tolist()}
        answers = plain_calls(urls, PREDICT, document)
        return {"y_pred_rows": pd.DataFrame([a["y_pred_rows"] for a in answers]).mean().tolist()}

    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="error", access_log=False)


def serve_worker(folder: str, kind: str, name: str, port: str) -> None:
    """Serve one of Chimera's workers."""
    from sklearn.linear_model import LinearRegression

    from chimera.nodes.settings import read_settings
    from chimera.nodes.workers import RegressionWorker, SGDWorker

    options = {"train_data": Path(folder), "workers_host": "127.0.0.1", "workers_port": int(port)}
    settings = read_settings(worker_name=name, **options)
    sgd = kind == "sgd"
    worker = (
        SGDWorker("regressor", exact_gradient=True, settings=settings)
        if sgd
        else RegressionWorker(LinearRegression(), settings=settings)
    )
    worker.serve()


def serve_master(ports: str, port: str) -> None:
    """Serve Chimera's aggregation master."""
    from chimera.nodes.masters import AggregationMaster
    from chimera.web.app import serve

    master = AggregationMaster(settings=settings_for(ports.split(",")))
    serve(master.app(), host="127.0.0.1", port=int(port), settings=master.settings)


def settings_for(ports: list[str]):
    from chimera.nodes.settings import read_settings

    count = len(ports)
    names = [f"w{i}" for i in range(count)]
    return read_settings(
        workers_nodes_names=names, workers_mapped_ports=[int(p) for p in ports], workers_cpu_shares=[2] * count
    )


def plain_calls(urls: list[str], path: str, document: dict) -> list[dict]:
    """Call all workers as the straightforward design does: a thread and a new session for each call."""
    import requests

    answers: list[dict] = [{}] * len(urls)

    def call(place: int) -> None:
        with requests.Session() as session:
            answers[place] = session.post(urls[place] + path, json=document, timeout=100).json()

    threads = [threading.Thread(target=call, args=(place,)) for place in range(len(urls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def plain_iterations(urls: list[str], count: int) -> float:
    """Return seconds per iteration of the straightforward parameter server."""
    import numpy as np

    weights, bias = np.zeros(COLUMNS), np.zeros(1)
    began_s = time.perf_counter()
    for _ in range(count):
        answers = plain_calls(urls, STEP, {"weights": list(map(float, weights)), "bias": list(map(float, bias))})
        weights = weights - 0.1 * np.mean([a["weights_gradients"] for a in answers], axis=0)
        bias = bias - 0.1 * np.mean([a["bias_gradient"] for a in answers], axis=0)
    return (time.perf_counter() - began_s) / count


def chimera_iterations(ports: list[str], count: int) -> float:
    """Return seconds per iteration of `ParameterServerMaster`: the difference of a long and a short fit."""
    from chimera.nodes.masters import ParameterServerMaster

    def fit(iterations: int) -> float:
        rate = {"learning_rate": "constant", "eta0": 0.1}
        master = ParameterServerMaster("regressor", 0.0, settings=settings_for(ports), max_iter=iterations, **rate)
        began_s = time.perf_counter()
        master.fit()
        return time.perf_counter() - began_s

    short = max(count // 10, 1)
    return (fit(count + short) - fit(short)) / count


def partial_fit_s() -> float:
    """Return the seconds of one pass over a worker's rows."""
    import numpy as np
    from sklearn.linear_model import SGDRegressor

    rng = np.random.default_rng(0)
    rows = rng.normal(size=(ROWS // WORKERS, COLUMNS))
    targets = rows @ rng.normal(size=COLUMNS)
    estimator = SGDRegressor(learning_rate="constant", eta0=1e-6, shuffle=False).partial_fit(rows, targets)
    return timed(lambda: estimator.partial_fit(rows, targets), 30)


def round_trip_s(port: str) -> float:
    """Return the seconds of a request without data on a kept connection."""
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", int(port))

    def request() -> None:
        connection.request("GET", "/health")
        connection.getresponse().read()

    try:
        return timed(request, 100)
    finally:
        connection.close()


def prediction_s(port: str, path: str, rows: int, count: int) -> float:
    """Return the seconds that a client waits for a master's prediction, on a kept connection."""
    import http.client

    import numpy as np

    values = np.random.default_rng(1).normal(size=(rows, COLUMNS)).tolist()
    body = json.dumps({"X_pred_columns": NAMES, "X_pred_rows": values})
    connection = http.client.HTTPConnection("127.0.0.1", int(port))

    def request() -> None:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert len(json.loads(answer.read())["y_pred_rows"]) == rows

    try:
        return timed(request, count)
    finally:
        connection.close()


def timed(function: Callable[[], object], count: int) -> float:
    function()
    seconds = []
    for _ in range(count):
        began_s = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - began_s)
    return statistics.median(seconds)


def free_ports(count: int) -> list[str]:
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [str(listener.getsockname()[1]) for listener in listeners]


@contextlib.contextmanager
def nodes(folder: Path) -> Iterator[dict[str, list[str]]]:
    """Run all nodes, each with one thread of arithmetic; yield their ports."""
    ports = free_ports(8)
    found = {"plain": ports[:2], "sgd": ports[2:4], "estimator": ports[4:6], "masters": ports[6:]}
    commands = [["serve_plain", str(folder), f"w{i}", port] for i, port in enumerate(found["plain"])]
    for kind in ("sgd", "estimator"):
        commands += [["serve_worker", str(folder), kind, f"w{i}", port] for i, port in enumerate(found[kind])]
    commands.append(["serve_plain_master", ",".join(found["plain"]), found["masters"][0]])
    commands.append(["serve_master", ",".join(found["estimator"]), found["masters"][1]])
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    processes = [
        subprocess.Popen([sys.executable, __file__, "--serve", *each], cwd=folder, env=os.environ | one_thread)
        for each in commands
    ]
    try:
        for port in ports:
            await_port(int(port))
        yield found
    finally:
        for process in processes:
            process.kill()
            process.wait()


def await_port(port: int, timeout_s: float = 60.0) -> None:
    until_s = time.monotonic() + timeout_s
    while True:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            return
        if time.monotonic() > until_s:
            raise TimeoutError(f"no server listens on port {port}")
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--predictions", type=int, default=30)
    parser.add_argument("--serve", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        globals()[options.serve[0]](*options.serve[1:])
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_data(folder)
        os.chdir(folder)
        with nodes(folder) as ports:
            measure(ports, options)


def measure(ports: dict[str, list[str]], options: argparse.Namespace) -> None:
    plain_urls = [f"http://localhost:{port}" for port in ports["plain"]]
    plain, ours = ports["masters"]
    fit_once(ours)
    path = "/v1/chimera/aggregation/predict"
    few = max(options.iterations // 10, 5)
    measured: dict[str, list[float]] = {}
    for _ in range(options.turns):
        for what, run in {
            "partial_fit alone": partial_fit_s,
            "one round trip": lambda: round_trip_s(ports["sgd"][0]),
            "iteration, straightforward": lambda: plain_iterations(plain_urls, few),
            "iteration, Chimera": lambda: chimera_iterations(ports["sgd"], options.iterations),
            "predict 1, straightforward": lambda: prediction_s(plain, "/predict", 1, options.predictions),
            "predict 1, Chimera": lambda: prediction_s(ours, path, 1, options.predictions),
            "predict 1000, straightforward": lambda: prediction_s(
                plain, "/predict", 1000, options.predictions // 3 + 1
            ),
            "predict 1000, Chimera": lambda: prediction_s(ours, path, 1000, options.predictions),
        }.items():
            measured.setdefault(what, []).append(run() * 1000)
    medians = {what: statistics.median(values) for what, values in measured.items()}
    for what, median in medians.items():
        low, high = min(measured[what]), max(measured[what])
        print(f"{what:32} {median:8.3f} ms   ({low:.3f} to {high:.3f})")
    pure = medians["partial_fit alone"] + medians["one round trip"]
    print(f"\niteration: {medians['iteration, Chimera'] / pure:.2f} times the pure cost (goal: at most 1.5)")
    for what, goal in (("iteration", 5), ("predict 1", 5), ("predict 1000", 10)):
        ratio = medians[f"{what}, straightforward"] / medians[f"{what}, Chimera"]
        print(f"{what}: {ratio:.1f} times as fast as the straightforward design (goal: {goal})")


def fit_once(port: str) -> None:
    import urllib.request

    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chimera/aggregation/fit", method="POST", data=b"")
    with urllib.request.urlopen(request, timeout=100) as answer:
        assert json.load(answer) == {"fit": "ok"}


if __name__ == "__main__":
    main()

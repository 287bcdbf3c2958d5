"""The OpenAPI schemas of nodes hold for arbitrary requests."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from sklearn.linear_model import LinearRegression
from sklearn.tree import DecisionTreeClassifier

from chimera.nodes.masters import AggregationMaster, ParameterServerMaster
from chimera.nodes.settings import Settings
from chimera.nodes.workers import ClassificationWorker, RegressionWorker, SGDWorker, TorchWorker
from nodes.served import LIMIT_S, ask, serving, settings, write_data

KINDS: dict[str, Callable[[Settings], Any]] = {
    "classification": lambda own: ClassificationWorker(DecisionTreeClassifier(), settings=own),
    "regression": lambda own: RegressionWorker(LinearRegression(), settings=own),
    "sgd": lambda own: SGDWorker("classifier", settings=own),
    "torch": lambda own: TorchWorker("mlp", options={"hidden": (4,)}, settings=own),
}


def write_worker(tmp_path: Path) -> Path:
    """Write the data of a worker, with the columns of the examples in the schemas, so that these are accepted."""
    rows = np.random.default_rng(0).standard_normal((20, 2))
    return write_data(tmp_path / "tree1", rows, (rows[:, 0] > 0).astype(int), columns=["mean radius", "mean texture"])


@pytest.fixture(params=KINDS)
def worker(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Return a worker of each kind."""
    write_worker(tmp_path)
    return KINDS[request.param](settings(tmp_path))


def examine(url: str) -> None:
    """Let schemathesis send requests to all routes at this address."""
    command = [str(Path(sys.executable).with_name("schemathesis")), "run", f"{url}/openapi.json"]
    command += ["--phases", "examples,coverage,fuzzing", "--max-examples", "20", "--seed", "1", "--continue-on-failure"]
    # A schema cannot state that the columns must be those of the training data.
    command += ["--checks", "all", "--exclude-checks", "positive_data_acceptance"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


@pytest.mark.long
def test_no_request_to_a_worker_causes_a_500_and_answers_match_their_schemas(worker: Any) -> None:
    with serving(worker.app(), worker.settings) as url:
        ask(worker.app(), "POST", "/v1/chimera/model/fit")
        examine(url)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("classification", lambda own: AggregationMaster(settings=own)),
        ("sgd", lambda own: ParameterServerMaster("classifier", max_iter=5, settings=own)),
    ],
    ids=["aggregation", "parameter-server"],
)
def test_no_request_to_a_master_causes_a_500_and_answers_match_their_schemas(
    tmp_path: Path, kind: str, make: Callable[[Settings], Any]
) -> None:
    own = settings(write_worker(tmp_path).parent)
    with serving(KINDS[kind](own).app(), own) as worker_url:
        master = make(settings(tmp_path, workers_mapped_ports=(int(worker_url.rsplit(":", 1)[1]),)))
        with serving(master.app(), master.settings) as url:
            path = "aggregation" if kind == "classification" else "parameter-server"
            assert httpx.post(f"{url}/v1/chimera/{path}/fit", timeout=LIMIT_S).json()["fit"] == "ok"
            examine(url)


def test_every_example_body_is_accepted(worker: Any) -> None:
    app = worker.app()
    if hasattr(worker, "fit"):
        worker.fit()
    elif hasattr(worker, "predict"):
        weights = worker.sample()["weights"]
        worker.fit_step(weights, [])
    requests = 0
    for path, verbs in ask(app, "GET", "/openapi.json").json()["paths"].items():
        for verb, page in verbs.items():
            assert page["summary"]
            body = page.get("requestBody")
            if body is None:
                assert ask(app, verb.upper(), path).status_code == 200
                continue
            example = body["content"]["application/json"]["example"]
            if isinstance(worker, TorchWorker) and path.endswith("fit-step"):
                example = {"weights": weights.tolist(), "bias": []}  # all parameters of the network
            answer = ask(app, verb.upper(), path, json=example)
            assert answer.status_code == 200, answer.text
            documented = page["responses"]["200"]["content"]["application/json"]["example"]
            assert set(answer.json()) == set(documented)
            requests += 1
    assert requests

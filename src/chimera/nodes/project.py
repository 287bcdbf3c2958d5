"""The example project that `chimera nodes init` writes."""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chimera.core.errors import ConfigurationError

WORKERS = ("tree1", "tree2")
TEST_ROWS = 100  # rows for the client, in no worker's data

MASTER = '''\
"""Bagging over two workers: each fits a tree to its own data, and the master averages their predictions."""

import os

import chimera
from chimera.nodes import AggregationMaster

os.environ["CHIMERA_WORKERS_NODES_NAMES"] = '["tree1", "tree2"]'
os.environ["CHIMERA_WORKERS_CPU_SHARES"] = "[2, 2]"
os.environ["CHIMERA_WORKERS_MAPPED_PORTS"] = "[5001, 5002]"
os.environ.setdefault("CHIMERA_WORKERS_HOST", "127.0.0.1")  # only this machine can connect to the master

if __name__ == "__main__":
    chimera.run(AggregationMaster(), 8080)
'''

WORKER = '''\
"""A worker: a decision tree fitted to bootstrapped rows of chimera_train_data/{name}/."""

from sklearn.tree import DecisionTreeClassifier

from chimera.nodes.workers import ClassificationWorker

worker = ClassificationWorker(DecisionTreeClassifier(max_depth=5, random_state=0), bootstrap=True)

if __name__ == "__main__":
    worker.serve()
'''

CLIENT = '''\
"""A client: starts a fit, requests predictions for test rows, and prints the accuracy."""

import csv
import json
import os
import sys
import urllib.error
import urllib.request

MASTER = os.environ.get("MASTER", "http://localhost:8080")


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Treats a redirect as an error, so that the token is sent to the master only."""

    def redirect_request(self, *_):
        """Return None, so that the redirect is not followed."""


# without the proxy of `http_proxy`: the master is on this network
opener = urllib.request.build_opener(NoRedirect, urllib.request.ProxyHandler({}))


def post(path, body=None):
    request = urllib.request.Request(MASTER + path, method="POST", data=json.dumps(body).encode() if body else b"")
    request.add_header("Content-Type", "application/json")
    if "CHIMERA_TOKEN" in os.environ:
        request.add_header("Authorization", "Bearer " + os.environ["CHIMERA_TOKEN"])
    try:
        with opener.open(request) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        sys.exit(f"{MASTER} answered {error.code}: {error.read().decode()}")
    except urllib.error.URLError as error:
        sys.exit(f"{MASTER} does not answer ({error.reason}): start it with 'python master.py' and wait until it is ready")


def read(name):
    with open(os.path.join("test_data", name), newline="") as file:
        columns, *rows = csv.reader(file)
    return columns, [[float(value) for value in row] for row in rows]


columns, rows = read("X_test.csv")
labels = [row[0] for row in read("y_test.csv")[1]]

print(post("/v1/chimera/aggregation/fit"))
answer = post("/v1/chimera/aggregation/predict", {"X_pred_columns": columns, "X_pred_rows": rows})
probabilities = [row[0] if isinstance(row, list) else row for row in answer["y_pred_rows"]]  # of the second class
correct = sum((probability > 0.5) == (label == 1) for probability, label in zip(probabilities, labels))
print(f"accuracy: {correct / len(labels):.3f} of {len(labels)} rows")
'''

TEST = '''\
"""The workers learn: python -m pytest."""

import csv
import runpy
from pathlib import Path

import pytest

from chimera.nodes.table import Table

HERE = Path(__file__).parent


def read(name):
    with open(HERE / "test_data" / name, newline="") as file:
        columns, *rows = csv.reader(file)
    return columns, [[float(value) for value in row] for row in rows]


@pytest.mark.parametrize("name", ["tree1", "tree2"])
def test_a_worker_predicts_most_test_rows(name, monkeypatch):
    monkeypatch.chdir(HERE)
    monkeypatch.setenv("CHIMERA_WORKER_NAME", name)
    worker = runpy.run_path(f"chimera_workers/{name}.py")["worker"]
    worker.fit()
    predicted = worker.predict(Table.of(*read("X_test.csv")))["y_pred_rows"]
    labels = [row[0] for row in read("y_test.csv")[1]]
    assert sum(one == other for one, other in zip(predicted, labels)) > 0.8 * len(labels)
'''

README = """\
# Two workers and a master

    python master.py      # starts the workers (in containers if Docker is available), and serves at http://localhost:8080
    python client.py      # in another terminal: fits, predicts, and prints the accuracy
    python -m pytest      # fits both workers without servers

To run the nodes in the background, use `chimera nodes up master.py --detach` instead of `python master.py`; then
`chimera nodes status`, `chimera nodes logs` and `chimera nodes down`. The page http://localhost:8080/docs lists the routes and
can send requests.

- `master.py`: the workers and the master.
- `chimera_workers/`: one file for each worker.
- `chimera_train_data/<worker>/`: `X_train.csv` and `y_train.csv`, the worker's own data.
- `test_data/`: test rows for the client.

The data set is scikit-learn's breast-cancer set: 30 measurements of a tumour; the label is 0 for malignant, 1 for benign.
"""


def write_project(folder: Path) -> list[Path]:
    """Write the example into a folder, and return its files.

    Raises
    ------
    ConfigurationError : a file exists already, or cannot be written.
    """
    texts = {Path("master.py"): MASTER, Path("client.py"): CLIENT, Path("README.md"): README}
    texts[Path("test_workers.py")] = TEST
    texts |= {Path("chimera_workers", f"{name}.py"): WORKER.format(name=name) for name in WORKERS}
    tables = _tables()
    there = [str(folder / file) for file in (*texts, *tables) if (folder / file).exists()]
    if there:
        raise ConfigurationError(f"{', '.join(there)} would be overwritten: choose a new folder")
    try:
        for file, text in texts.items():
            _parent_of(folder / file).write_text(text, encoding="utf-8")
        for file, (columns, rows) in tables.items():
            with _parent_of(folder / file).open("w", newline="", encoding="utf-8") as out:
                csv.writer(out).writerows([columns, *rows])
    except OSError as error:
        for file in (*texts, *tables):  # on a full disk; a second call would refuse to overwrite them
            with contextlib.suppress(OSError):
                (folder / file).unlink()
        raise ConfigurationError(f"cannot write the example into {folder}: {error}") from error
    return [folder / file for file in (*texts, *tables)]


def _tables() -> dict[Path, tuple[Sequence[str], Any]]:
    """Return the columns and rows of each data file; they are the same in every call."""
    import numpy as np
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    order = np.random.default_rng(0).permutation(len(data.target))
    test, *parts = order[:TEST_ROWS], *np.array_split(order[TEST_ROWS:], len(WORKERS))
    columns = [str(name) for name in data.feature_names]
    places = {Path("test_data"): ("test", test)}
    places |= {Path("chimera_train_data", name): ("train", part) for name, part in zip(WORKERS, parts, strict=True)}
    tables: dict[Path, tuple[Sequence[str], Any]] = {}
    for place, (kind, rows) in places.items():
        tables[place / f"X_{kind}.csv"] = columns, data.data[rows].tolist()
        tables[place / f"y_{kind}.csv"] = ["target"], data.target[rows, None].tolist()
    return tables


def _parent_of(file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    return file

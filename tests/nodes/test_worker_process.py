"""A worker's file, run in its own Python process."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

import chimera
from chimera.nodes import workers
from nodes.served import LIMIT_S, error_of, worker_process, write_data

FIT, PREDICT = "/v1/chimera/model/fit", "/v1/chimera/model/predict"

TREE = """
from sklearn.tree import DecisionTreeClassifier
from chimera.nodes.workers import ClassificationWorker

worker = ClassificationWorker(DecisionTreeClassifier(max_depth=5), bootstrap=True)
if __name__ == "__main__":
    worker.serve()
"""

ENDLESS = """
import time
from pathlib import Path
from sklearn.dummy import DummyRegressor
from chimera.nodes.workers import RegressionWorker

class Endless(DummyRegressor):
    def fit(self, rows, y):
        Path("began").touch()
        time.sleep(3600)

RegressionWorker(Endless()).serve()
"""


def folder_with(tmp_path: Path, text: str) -> Path:
    rows, y = load_breast_cancer(return_X_y=True)
    write_data(tmp_path / "chimera_train_data" / "tree1", rows, y)
    (tmp_path / "chimera_workers").mkdir()
    file = tmp_path / "chimera_workers" / "tree1.py"
    file.write_text(text)
    return file


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_workers_file_serves_under_its_name_until_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    rows, y = load_breast_cancer(return_X_y=True)
    with worker_process(folder_with(tmp_path, TREE), tmp_path, CHIMERA_TOKEN="secret") as worker:
        health = worker.wait_healthy()
        assert (health["name"], health["kind"], health["type"]) == ("tree1", "worker", "ClassificationWorker")
        headers = {"Authorization": "Bearer secret"}
        with httpx.Client(base_url=worker.url, headers=headers, timeout=LIMIT_S) as client:
            assert client.post(FIT).json() == {"fit": "ok"}
            body = {"X_pred_columns": [f"x{i}" for i in range(30)], "X_pred_rows": rows.tolist()}
            assert np.mean(np.array(client.post(PREDICT, json=body).json()["y_pred_rows"]) == y) > 0.9
            assert error_of(httpx.post(worker.url + FIT))[0] == 401
            worker.process.send_signal(number)
            assert worker.ended()[0] == 0  # although the client's connection is open
    log = (tmp_path / "chimera_status.log").read_text()
    assert f"listens on 127.0.0.1:{worker.port}" in log
    assert "has stopped" in log
    assert "secret" not in log


@pytest.mark.long
def test_a_worker_stops_within_seconds_during_a_long_fit(tmp_path: Path) -> None:
    with worker_process(folder_with(tmp_path, ENDLESS), tmp_path) as worker:
        worker.wait_healthy()
        with socket.create_connection(("127.0.0.1", worker.port), timeout=LIMIT_S) as client:
            client.sendall(f"POST {FIT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n".encode())
            deadline = time.monotonic() + LIMIT_S
            while not (tmp_path / "began").exists():
                assert time.monotonic() < deadline
                os.sched_yield()
            assert httpx.get(f"{worker.url}/health", timeout=LIMIT_S).json()["fitted"] is False
            began = time.monotonic()
            worker.process.terminate()
            assert client.recv(1000).startswith(b"HTTP/1.1 503 ")
            assert worker.ended()[0] == 0
            assert time.monotonic() - began < 10


@pytest.mark.long
def test_answers_on_a_persistent_connection_are_not_delayed(tmp_path: Path) -> None:
    with worker_process(folder_with(tmp_path, TREE), tmp_path) as worker:
        worker.wait_healthy()
        with httpx.Client(base_url=worker.url, timeout=LIMIT_S) as client:
            times = []
            for _ in range(50):
                began = time.perf_counter()
                client.get("/health")
                times.append(time.perf_counter() - began)
    assert sorted(times)[25] < 0.03  # without TCP_NODELAY it is 0.044 on any machine


@pytest.mark.long
def test_invalid_settings_are_one_line_and_exit_code_2(tmp_path: Path) -> None:
    file = folder_with(tmp_path, TREE)
    for message, given in (
        ("cannot listen on", {"CHIMERA_TOKEN": "right"}),
        ("listening on 192.0.2.1 would let every", {}),
    ):
        with worker_process(file, tmp_path, CHIMERA_WORKERS_HOST="192.0.2.1", **given) as worker:
            status, written = worker.ended()
            assert status == 2
            assert written.startswith(f"chimera: tree1: {message}")
            assert written.count("\n") == 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda file: file.unlink(), "y_train.csv"),
        (lambda file: file.write_text("target\n1\nyes\n"), "y_train.csv"),
    ],
    ids=["missing", "rows differ"],
)
def test_invalid_data_end_a_worker_at_its_start_with_one_line(tmp_path: Path, break_it: Any, message: str) -> None:
    file = folder_with(tmp_path, TREE)
    break_it(tmp_path / "chimera_train_data/tree1/y_train.csv")
    with worker_process(file, tmp_path) as worker:
        status, written = worker.ended()
    assert status == 2
    assert written.startswith("chimera: tree1: its data are invalid: ")
    assert message in written
    assert written.count("\n") == 1


def test_the_public_names_of_workers() -> None:
    assert workers.__all__ == sorted(workers.__all__)
    for name in workers.__all__:
        assert getattr(workers, name) is getattr(chimera.nodes, name)
        assert getattr(workers, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'Worker'"):
        _ = workers.Worker

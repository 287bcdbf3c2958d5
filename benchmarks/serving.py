"""Latency of queries to a served model: on an idle cluster, beside two jobs that keep all workers busy, and with FastAPI.

Clients keep their connections, and send one query after the other. Models wait instead of computing, so that the figures show
the costs of the cluster, not the number of cores::

    python benchmarks/serving.py [--workers 3] [--clients 1] [--seconds 10] [--model-ms 0 3 10]
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from chimera.inference.session import InferenceCluster

WAITING = """
import time

class Waiting:
    def __init__(self, seconds):
        self.seconds = seconds

    def predict(self, queries):
        if self.seconds:
            time.sleep(self.seconds * len(queries))
        return queries

def make(seconds):
    return Waiting(seconds)
"""
PLAIN = """
import sys
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from waiting import make

class Query(BaseModel):
    query: Any

app, model = FastAPI(), make(float(sys.argv[2]))

@app.post("/v1/infer/waiting")
def ask(body: Query) -> dict[str, Any]:
    return {"result": model.predict([body.query])[0]}

uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
"""
JOBS_S = (0.010, 0.024)
ROUTE = "/v1/infer/waiting"


def latencies(address: str, token: str, clients: int, seconds: float) -> np.ndarray[Any, Any]:
    """Return the seconds of each query; each client sends one query after another."""
    found: list[float] = []
    body = json.dumps({"query": 7})
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    until_s = time.perf_counter() + seconds

    def ask() -> None:
        connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while (began_s := time.perf_counter()) < until_s:
            connection.request("POST", ROUTE, body, headers)
            with connection.getresponse() as answer:
                assert json.loads(answer.read()) == {"result": 7}, answer.status
            found.append(time.perf_counter() - began_s)
        connection.close()

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return np.array(found)


@contextlib.contextmanager
def plain(folder: Path, seconds: float) -> Iterator[str]:
    """Serve the model with FastAPI and uvicorn alone; return the address."""
    (folder / "plain.py").write_text(PLAIN)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = subprocess.Popen([sys.executable, str(folder / "plain.py"), str(port), str(seconds)], cwd=folder)
    try:
        deadline_s = time.monotonic() + 30
        while time.monotonic() < deadline_s:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def shown(what: str, found: np.ndarray[Any, Any], seconds: float, more: str = "") -> None:
    p50, p99 = np.quantile(found, (0.5, 0.99)) * 1000
    print(f"  {what:52} p50 {p50:7.2f} ms  p99 {p99:7.2f} ms  {len(found) / seconds:7.1f} answers/s {more}", flush=True)


def finished(cluster: InferenceCluster, jobs: Sequence[str]) -> float:
    """Return the seconds of computing in the finished queries of the jobs."""
    rows = {row["job"]: row for row in cluster.client.rows("jobs")}
    return sum(rows[job]["finished"] * each_s for job, each_s in zip(jobs, JOBS_S, strict=True))


def beside(cluster: InferenceCluster, table: Any, token: str, given: argparse.Namespace, **options: Any) -> None:
    """Measure beside two jobs."""
    client = cluster.client
    client.serve("waiting", table(given.beside_ms / 1000), **options)
    queries = list(range(int(2 * (given.seconds + 10) * given.workers / min(JOBS_S))))
    jobs = [client.submit(table(each_s), queries) for each_s in JOBS_S]
    latencies(address_of(cluster), token, given.clients, 3.0)  # all models are loaded, and batches have their size
    before, began_s = finished(cluster, jobs), time.perf_counter()
    found = latencies(address_of(cluster), token, given.clients, given.seconds)
    share = (finished(cluster, jobs) - before) / (time.perf_counter() - began_s) / given.workers
    named = ", ".join(f"{key} {value}" for key, value in options.items()) or "no options"
    shown(f"beside two jobs, {named}", found, given.seconds, f" jobs compute {share:.1%} of the workers' time")
    for job in jobs:
        client.cancel(job)
    client.unserve("waiting")
    while any(row["state"] != "free" for row in client.rows("workers")):
        time.sleep(0.05)


def address_of(cluster: InferenceCluster) -> str:
    return next(row["address"] for row in cluster.client.rows("members") if row["role"] == "coordinator")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--model-ms", type=float, nargs="*", default=[0.0, 3.0, 10.0])
    parser.add_argument("--beside-ms", type=float, default=3.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "waiting.py"
        file.write_text(WAITING)

        def table(seconds: float) -> dict[str, Any]:
            return {"kind": "factory", "factory": f"{file}:make", "options": {"seconds": seconds}}

        for each_ms in given.model_ms:
            print(f"a model of {each_ms:g} ms, {given.clients} client(s)")
            with plain(Path(place), each_ms / 1000) as address:
                latencies(address, "", given.clients, 1.0)
                shown("plain FastAPI", latencies(address, "", given.clients, given.seconds), given.seconds)
            with InferenceCluster(workers=given.workers, standbys=0, preload="") as cluster:
                token = (cluster.folder / "token").read_text()
                cluster.client.serve("waiting", table(each_ms / 1000))
                latencies(address_of(cluster), token, given.clients, 1.0)
                found = latencies(address_of(cluster), token, given.clients, given.seconds)
                shown(f"an idle cluster of {given.workers} workers", found, given.seconds)
        print(f"a model of {given.beside_ms:g} ms beside two jobs of 10 and 24 ms a query, {given.clients} client(s)")
        for options in ({}, {"latency_target_s": 0.05}, {"latency_target_s": 0.05, "reserve": 1}):
            with InferenceCluster(workers=given.workers, standbys=0, preload="") as cluster:
                beside(cluster, table, (cluster.folder / "token").read_text(), given, **options)


if __name__ == "__main__":
    main()

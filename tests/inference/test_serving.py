"""Models that are served online by a real cluster: queries are answered, even if workers or coordinators die."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from chimera.core.errors import ConfigurationError, ConflictError, TimeLimitError, UnavailableError
from chimera.inference import models
from inference.running import RunningCluster, cluster, command, signalled, until
from inference_kit import tiny_bert

COUNTED = """
class Counted:
    def __init__(self):
        with open({!r}, "a") as log:
            log.write("loaded\\n")

    def predict(self, queries):
        return queries
"""


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """A cluster without faults."""
    with cluster(tmp_path_factory.mktemp("serving"), standbys=0) as running:
        yield running


def request(
    running: RunningCluster, method: str, path: str, body: Any = None, *, token: str | None = None
) -> tuple[int, Any]:
    """Ask the coordinator as any client that speaks HTTP does; return the status and the body."""
    address = running.member("coordinator")["address"]
    bearer = (running.folder / "token").read_text() if token is None else token
    headers = {"Authorization": f"Bearer {bearer}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(address + path, data=data, headers=headers, method=method)
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            text = answer.read().decode()
            return answer.status, json.loads(text) if "json" in answer.headers["content-type"] else text
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def row(running: RunningCluster, job: str) -> dict[str, Any]:
    return running.client.job(job)


def test_a_query_is_answered_and_the_model_listed_changed_and_taken_away(quiet: RunningCluster) -> None:
    status, served = request(quiet, "PUT", "/v1/infer/models/double", {"model": quiet.model(seconds=0.001)})
    assert status == 200
    assert request(quiet, "POST", "/v1/infer/double", {"query": 21}) == (200, {"result": 42})
    answers = [{"result": 2}, {"result": "aa"}]
    assert request(quiet, "POST", "/v1/infer/double", {"queries": [1, "a"]}) == (200, {"results": answers})
    assert row(quiet, "double")["state"] == "serving"
    assert quiet.client.serve("double", quiet.model(seconds=0.001), weight=3.0) == served["job"]
    assert row(quiet, "double")["weight"] == 3.0
    with pytest.raises(ConflictError, match="another model is served as 'double'"):
        quiet.client.serve("double", quiet.model(seconds=0.5))
    assert quiet.client.unserve("double") == served["job"]
    until(lambda: row(quiet, served["job"])["state"] == "done")
    assert row(quiet, served["job"])["finished"] == 3
    status, told = request(quiet, "POST", "/v1/infer/double", {"query": 1})
    assert (status, told["details"]["errorMessage"]) == (422, "NotServedError")


@pytest.mark.long
def test_of_the_free_workers_one_that_has_the_model_is_asked(quiet: RunningCluster, tmp_path: Path) -> None:
    loads, file = tmp_path / "loads", tmp_path / "counted.py"
    file.write_text(COUNTED.format(str(loads)))
    job = quiet.client.submit(quiet.model(seconds=0.6), [1])
    until(lambda: any(one["state"] == "busy" for one in quiet.client.rows("workers")))
    quiet.client.serve("counted", {"kind": "factory", "factory": f"{file}:Counted"})
    quiet.client.ask("counted", [1])  # the other worker loads the model
    quiet.client.wait(job, 60)
    for query in range(5):
        assert quiet.client.ask("counted", [query]) == [{"result": query}]
    assert loads.read_text() == "loaded\n"


def test_a_query_that_fails_has_an_error_and_those_beside_it_their_answers(quiet: RunningCluster) -> None:
    quiet.client.serve("fails", quiet.model(seconds=0.001))
    good, bad, other = quiet.client.ask("fails", [1, "broken", 3])
    assert (good, other) == ({"result": 2}, {"result": 6})
    assert "a broken query" in bad["error"]


def test_queries_of_many_clients_go_together_at_most_a_batch_at_a_time(quiet: RunningCluster, tmp_path: Path) -> None:
    log = tmp_path / "answered"
    quiet.client.serve("many", quiet.model(seconds=0.01, log=str(log)), batch_size=8)
    with ThreadPoolExecutor(32) as clients:
        answers = list(clients.map(lambda query: quiet.client.ask("many", [query]), range(128)))
    assert answers == [[{"result": 2 * query}] for query in range(128)]
    assert sorted(log.read_text().split(), key=int) == [str(query) for query in range(128)]  # each was computed once
    page = request(quiet, "GET", "/metrics")[1]
    assert 'chimera_inference_answer_seconds_count{model="many"} 128.0' in page


@pytest.mark.long
def test_a_served_model_and_a_job_share_the_workers(quiet: RunningCluster) -> None:
    quiet.client.serve("shares", quiet.model(seconds=0.005))
    job = quiet.client.submit(quiet.model(seconds=0.005), list(range(8000)), batch_size=20)
    quiet.processed(job, 100)
    before, began = row(quiet, job)["finished"], row(quiet, "shares")["finished"]
    over = threading.Event()

    def keep_asking() -> None:
        while not over.is_set():
            quiet.client.ask("shares", list(range(50)))

    askers = [threading.Thread(target=keep_asking) for _ in range(8)]
    for asker in askers:
        asker.start()
    try:
        until(lambda: row(quiet, "shares")["finished"] - began >= 500)
        shares = row(quiet, "shares")["finished"] - began, row(quiet, job)["finished"] - before
    finally:
        over.set()
        quiet.client.cancel(job)
        for asker in askers:
            asker.join()
    assert 0.7 <= shares[0] / shares[1] <= 1.4  # batches are not cut off: over so short a time it is not equal


@pytest.mark.long
def test_a_model_with_a_reserved_worker_does_not_wait_for_the_batches_of_jobs(quiet: RunningCluster) -> None:
    quiet.client.serve("kept", quiet.model(seconds=0.001), reserve=1)
    quiet.client.ask("kept", [1])  # its worker has loaded it
    job = quiet.client.submit(quiet.model(seconds=0.6), list(range(100)), batch_size=1)
    try:
        quiet.processed(job, 1)
        for query in range(20):
            began_s = time.monotonic()
            assert quiet.client.ask("kept", [query]) == [{"result": 2 * query}]
            assert time.monotonic() - began_s < 0.5
        assert sum(one["job"] == job for one in quiet.client.rows("workers")) == 1
    finally:
        quiet.client.cancel(job)
        quiet.client.unserve("kept")


@pytest.mark.long
def test_time_and_queue_have_limits(quiet: RunningCluster) -> None:
    quiet.client.serve("slow", quiet.model(seconds=0.5), batch_size=1, max_workers=1)
    slow = "/v1/infer/slow"
    status, told = request(quiet, "POST", slow, {"queries": [1, 2, 3, 4, 5, 6], "timeout_s": 0.2})
    assert (status, told["details"]) == (504, {"errorCode": 504, "errorMessage": "TimeLimitError"})
    assert row(quiet, "slow")["queries"] <= 2  # what was in no batch yet is not computed
    with pytest.raises(TimeLimitError):
        quiet.client.ask("slow", [1] * 100, timeout_s=0.2)
    with ThreadPoolExecutor(11) as clients:
        tries = [
            clients.submit(request, quiet, "POST", slow, {"queries": [1] * 100, "timeout_s": 2}) for _ in range(11)
        ]
        found = sorted((status, told["details"]["errorMessage"]) for status, told in (one.result() for one in tries))
    assert set(found) == {(503, "QueueFullError"), (504, "TimeLimitError")}
    quiet.client.cancel("slow")
    until(lambda: all(one["state"] == "free" for one in quiet.client.rows("workers")))


def test_queries_whose_client_has_gone_are_not_computed(quiet: RunningCluster) -> None:
    quiet.client.serve("left", quiet.model(seconds=0.5), batch_size=1, max_workers=1)
    host, _, port = quiet.member("coordinator")["address"].removeprefix("http://").partition(":")
    body = json.dumps({"queries": list(range(60))}).encode()
    head = f"POST /v1/infer/left HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\nContent-Type: application/json\r\n"
    token = (quiet.folder / "token").read_text()
    with socket.create_connection((host, int(port)), timeout=30) as client:
        client.sendall(f"{head}Authorization: Bearer {token}\r\n\r\n".encode() + body)
        until(lambda: row(quiet, "left")["queries"] == 60)
    until(lambda: row(quiet, "left")["queries"] <= 3)
    quiet.client.cancel("left")


def status_of_large_request(running: RunningCluster, path: str) -> int:
    """Announce a body of 17 MiB, send what the server reads of it, and return the status.

    The server closes the connection at the first byte beyond its limit. A reset for further bytes could overtake its answer.
    """
    address = urllib.parse.urlsplit(running.member("coordinator")["address"])
    connection = http.client.HTTPConnection(address.netloc, timeout=60)
    connection.putrequest("POST", path)
    connection.putheader("Authorization", f"Bearer {(running.folder / 'token').read_text()}")
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", str(17 << 20))
    connection.endheaders(bytes((16 << 20) + 1))
    with contextlib.closing(connection), connection.getresponse() as answer:
        return answer.status


def test_mistakes_are_told_in_one_line(quiet: RunningCluster) -> None:
    for path, body, message in (
        ("/v1/infer/x", {"query": 1, "queries": [1]}, "either 'query' or 'queries'"),
        ("/v1/infer/x", {"queries": []}, "1 to 100"),
        ("/v1/infer/x", {"query": 1, "timeout_s": -1}, "timeout_s must be a number above 0"),
        ("/v1/infer/x", {"query": 1}, "no model is served as 'x'"),
        ("/v1/infer/x", {"quest": 1}, "unknown fields: 'quest'"),
    ):
        status, told = request(quiet, "POST", path, body)
        assert status == 422
        assert message in told["message"]
    with pytest.raises(ConfigurationError, match="reserve must be a whole number from 0 to 1000, not -1"):
        quiet.client.serve("x", quiet.model(), reserve=-1)
    with pytest.raises(ConfigurationError, match="latency_target_s must be a number above 0, at most 2592000, not 0"):
        quiet.client.serve("x", quiet.model(), latency_target_s=0)
    with pytest.raises(ConfigurationError, match="invalid name of a served model: 'jobs'"):
        quiet.client.serve("jobs", quiet.model())
    assert request(quiet, "POST", "/v1/infer/x", {"query": 1}, token="guessed")[0] == 401
    assert status_of_large_request(quiet, "/v1/infer/x") == 413


def test_pages_and_figures_tell_of_what_is_served(quiet: RunningCluster) -> None:
    quiet.client.serve("told", quiet.model(seconds=0.001))
    quiet.client.ask("told", [1])
    free = 'chimera_inference_workers{state="free"} 2.0'  # once what others have left is computed
    page = until(lambda: free in (told := request(quiet, "GET", "/metrics")[1]) and told)
    assert "chimera_inference_leads 1.0" in page
    number = row(quiet, "told")["job"]
    for name in ("waiting_queries", "rate", "processed_queries_total"):
        assert f'chimera_inference_{name}{{job="{number}",name="told"}}' in page
    paths = request(quiet, "GET", "/openapi.json")[1]["paths"]
    assert {"200", "401", "413", "422", "503", "504"} <= paths["/v1/infer/{name}"]["post"]["responses"].keys()
    assert "put" in paths["/v1/infer/models/{name}"]


def test_the_commands_serve_ask_and_unserve(quiet: RunningCluster, tmp_path: Path) -> None:
    file = tmp_path / "model.toml"
    file.write_text(f'kind = "factory"\nfactory = "{quiet.model_file}:make"\n[options]\nseconds = 0.001\n')
    more = ("--weight", "2", "--reserve", "1", "--latency-target-ms", "50")
    (served,) = command(quiet, "serve", "cli", "--model", str(file), *more)
    assert served["name"] == "cli"
    own = row(quiet, "cli")
    assert (own["weight"], own["reserve"], own["latency_target_s"]) == (2.0, 1, 0.05)
    assert quiet.client.ask("cli", ["a"]) == [{"result": "aa"}]
    assert command(quiet, "ask", "cli", "a") == [{"query": "a", "result": "aa"}]
    assert command(quiet, "ask", "cli", "--parse", "[1, 2]", "3") == [
        {"query": [1, 2], "result": [1, 2, 1, 2]},
        {"query": 3, "result": 6},
    ]
    assert any(one["job"] == served["job"] and one["state"] == "serving" for one in command(quiet, "list")[0])
    assert command(quiet, "unserve", "cli") == [served]


@pytest.mark.long
def test_a_dead_worker_s_queries_are_computed_again_and_a_successor_serves_on(tmp_path: Path) -> None:
    with cluster(tmp_path, workers=2, standbys=1) as running:
        running.client.serve("stays", running.model(seconds=0.2), weight=2.0)
        with ThreadPoolExecutor(4) as clients:
            asked = [clients.submit(running.client.ask, "stays", [query]) for query in range(4)]
            until(lambda: any(one["state"] == "busy" for one in running.client.rows("workers")))
            busy = next(one["worker"] for one in running.client.rows("workers") if one["state"] == "busy")
            signalled(running.pid(busy), signal.SIGKILL)
            assert [one.result(60) for one in asked] == [[{"result": 2 * query}] for query in range(4)]
        first = running.member("coordinator")
        with ThreadPoolExecutor(1) as clients:
            broken = clients.submit(request, running, "POST", "/v1/infer/stays", {"queries": list(range(30))})
            until(lambda: row(running, "stays")["queries"] > 4)
            signalled(first["pid"], signal.SIGKILL)
            with pytest.raises((ConnectionError, urllib.error.URLError)):
                broken.result(60)  # the connection to a coordinator that dies fails
        until(lambda: running.member("coordinator")["epoch"] > first["epoch"])
        assert running.client.ask("stays", [100, 101]) == [
            {"result": 200},
            {"result": 202},
        ]  # and no answers of other requests
        assert row(running, "stays")["weight"] == 2.0


@pytest.mark.long
def test_who_asked_a_coordinator_that_hangs_goes_to_its_successor(tmp_path: Path) -> None:
    with cluster(tmp_path, workers=1, standbys=1) as running, ThreadPoolExecutor(1) as clients:
        running.client.serve("stays", running.model(seconds=0.1))
        first = running.member("coordinator")
        waits = clients.submit(running.client.ask, "stays", list(range(10)), timeout_s=60.0)
        until(lambda: row(running, "stays")["queries"] == 10)
        signalled(first["pid"], signal.SIGSTOP)
        hung_s = time.monotonic()
        assert row(running, "stays")["state"] == "serving"
        assert time.monotonic() - hung_s < 2.0
        assert waits.result(60) == [{"result": 2 * query} for query in range(10)]
        assert time.monotonic() - hung_s < 20.0
        assert running.member("coordinator")["epoch"] > first["epoch"]


def test_whoever_waits_for_a_model_that_is_cancelled_is_told(quiet: RunningCluster) -> None:
    quiet.client.serve("stopped", quiet.model(seconds=0.3), batch_size=1)
    with ThreadPoolExecutor(1) as clients:
        asked = clients.submit(request, quiet, "POST", "/v1/infer/stopped", {"queries": [1] * 50})
        until(lambda: row(quiet, "stopped")["queries"] == 50)
        quiet.client.cancel("stopped")
        status, told = asked.result(60)
    assert status == 503
    assert "cancelled" in told["message"]
    with pytest.raises((UnavailableError, ConfigurationError)):
        quiet.client.ask("stopped", [1])


@pytest.mark.long
def test_a_pipeline_and_an_estimator_answer_online_as_they_do_at_home(quiet: RunningCluster, tmp_path: Path) -> None:
    import skops.io
    from sklearn.linear_model import LogisticRegression

    rows = [[0.0, 1.0], [1.0, 0.0], [0.5, 2.0], [3.0, 0.1]]
    skops.io.dump(LogisticRegression().fit(rows, ["a", "b", "a", "b"]), tmp_path / "letters.skops")
    asked = {
        "letters": ({"kind": "sklearn", "file": str(tmp_path / "letters.skops")}, rows),
        "bert": (
            {"kind": "transformers", "task": "fill-mask", "model": str(tiny_bert(tmp_path / "bert"))},
            ["the cat [MASK] on the mat", "a [MASK]", "no mask"],
        ),
    }
    for name, (table, queries) in asked.items():
        quiet.client.serve(name, models.check(table))
        answers = quiet.client.ask(name, queries, timeout_s=120.0)
        assert answers == models.answers(models.load(table), queries)
        quiet.client.unserve(name)
    assert [sorted(answer) for answer in answers] == [["result"], ["result"], ["error"]]


@pytest.mark.slow
def test_a_served_model_and_a_job_share_the_workers_for_half_a_minute(tmp_path: Path) -> None:
    with cluster(tmp_path, workers=4, standbys=0) as running, ThreadPoolExecutor(64) as clients:
        job = running.client.submit(running.model(seconds=0.024), list(range(10_000)))
        served = running.client.serve("served", running.model(seconds=0.01))
        over = threading.Event()

        def ask() -> None:
            while not over.is_set():
                assert running.client.ask("served", [1]) == [{"result": 2}]

        asking = [clients.submit(ask) for _ in range(64)]
        try:
            counts = [progress(running, job, served, at_s) for at_s in (5.0, 35.0)]
        finally:
            over.set()
        for one in asking:
            one.result(60)
        rates = [(after - before) / 30.0 for before, after in zip(*counts, strict=True)]
        sys.stderr.write(f"queries per second: {rates[0]:.1f} of the job, {rates[1]:.1f} of the served model\n")
        assert max(rates) / min(rates) <= 1.1
        running.client.cancel(job)


def progress(running: RunningCluster, *jobs_and_s: Any) -> list[int]:
    """Return how many queries of jobs are finished so many seconds after the first one was accepted."""
    *jobs, at_s = jobs_and_s
    until(lambda: time.time() - running.client.job(jobs[0])["accepted_s"] > at_s)
    return [running.client.job(job)["finished"] for job in jobs]

"""The fork server: libraries are imported once for all computing processes, which end with their worker."""

from __future__ import annotations

import os
import queue
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import inference_kit
from chimera.engines.http import wire
from chimera.inference import models
from chimera.inference.models.spec import key_of
from chimera.inference.worker.fork_client import ForkClient, start
from chimera.inference.worker.fork_protocol import Request, sockets
from chimera.inference.worker.protocol import Assignment
from chimera.inference.worker.worker import InferenceWorker
from inference import model
from inference.journal_kit import LIMIT_S
from inference.running import alive, until

FILE = str(Path(model.__file__).resolve())
COUNTED = """
import os
from pathlib import Path
with Path({log!r}).open("a") as log:
    log.write(f"{{os.getpid()}}\\n")
"""


def table(factory: str, **options: Any) -> dict[str, Any]:
    return {"kind": "factory", "factory": f"{FILE}:{factory}", "options": options}


def answers(worker: InferenceWorker, model: dict[str, Any], *queries: Any, job: str = "1") -> list[Any]:
    """Return what a worker answers to a batch."""
    worker.assign(1, [Assignment(job, 0, model, list(queries))])
    (done,) = until(lambda: worker.collect(1, [], 0.25).results)
    worker.collect(1, [done.batch_id], 0)
    found = wire.unpack(done.results)
    return [one.get("result", one.get("error")) for one in found]


@pytest.fixture
def forks() -> Iterator[ForkClient]:
    made = ForkClient()
    yield made
    made.close()


def forked(forks: ForkClient) -> list[psutil.Process]:
    """Return all processes of a fork server, itself first."""
    assert forks._own is not None
    root = psutil.Process(forks._own.pid)
    return [root, *root.children(recursive=True)]


def computing(forks: ForkClient) -> list[psutil.Process]:
    return [one for one in forked(forks)[1:] if os.getsid(one.pid) == one.pid]


def memory_mb(pid: int) -> dict[str, float]:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {name: int(value.split()[0]) / 1000 for name, _, value in (line.partition(":") for line in lines)}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that writes down each process that imports it, on the import path of new processes."""
    (tmp_path / "counted.py").write_text(COUNTED.format(log=str(tmp_path / "imports")))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    return "counted"


def test_two_workers_import_libraries_once_and_a_model_that_needs_none_waits_for_none(
    module: str, tmp_path: Path
) -> None:
    shared = ForkClient()
    workers = []
    try:
        assert shared._own is not None
        for name in ("w0", "w1"):
            forks = ForkClient(os.dup(shared._socket.fileno()))
            workers.append(InferenceWorker(name, on_exit=print, preload=[module], forks=forks))
        for worker in workers:
            assert answers(worker, table("Imported"), module) == [True]
        assert len((tmp_path / "imports").read_text().splitlines()) == 1
        assert len(computing(shared)) == 2
    finally:
        for worker in workers:
            worker.close()
        shared.close()


def test_each_model_has_a_process_and_a_crash_costs_that_model_only(forks: ForkClient) -> None:
    worker = InferenceWorker("w0", on_exit=print, keep_models=2, forks=forks)
    try:
        a, b, c = (table("Echo", name=name) for name in "abc")
        assert [answers(worker, one, "?") for one in (a, b)] == [["a?"], ["b?"]]
        assert len(computing(forks)) == 2
        worker.assign(1, [Assignment("1", 1, a, ["die"])])
        (failed,) = until(lambda: worker.collect(1, [], 0.25).results)
        assert failed.failure == "its process exited with code 9"
        assert until(lambda: worker.state().loaded == [key_of(b)])
        worker.collect(1, [failed.batch_id], 0)
        assert [answers(worker, one, "?", job=job) for job, one in (("2", c), ("3", a))] == [["c?"], ["a?"]]
        assert worker.state().loaded == [key_of(c), key_of(a)]
        assert until(lambda: len(computing(forks)) == 2)
    finally:
        worker.close()


def test_the_fork_server_ends_with_its_starter_and_processes_with_their_worker(module: str, forks: ForkClient) -> None:
    worker = InferenceWorker("w0", on_exit=print, preload=[module], forks=forks)
    answers(worker, table("Echo"), "a")
    family = forked(forks)
    assert len(family) == 3
    family[0].kill()  # the others of the tree end with it; the computing process does not
    until(lambda: not alive(family[1].pid))
    assert answers(worker, table("Echo"), "b", job="2") == ["b"]
    worker.close()
    until(lambda: not any(alive(one.pid) for one in family))


def test_a_worker_whose_fork_server_has_ended_says_so_and_ends(forks: ForkClient) -> None:
    ended: queue.SimpleQueue[str] = queue.SimpleQueue()
    worker = InferenceWorker("w0", on_exit=ended.put, forks=forks)
    forked(forks)[0].send_signal(signal.SIGKILL)
    worker.assign(1, [Assignment("1", 0, table("Echo"), ["a"])])
    assert ended.get(timeout=LIMIT_S) == "worker w0: the process that forks the computing processes has ended"
    worker.close()


@pytest.mark.takes("torch and transformers are imported once")
@pytest.mark.long
def test_a_model_is_loaded_once_while_workers_compute_and_is_in_memory_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")  # whose threads would not survive a fork
    folder = inference_kit.tiny_bert(
        tmp_path / "bert", dtype="float16", classifier=True, vocab_size=60_000, hidden_size=512
    )
    bert = models.read(
        {"kind": "transformers", "task": "text-classification", "model": str(folder), "dtype": "float32"}
    )
    weights_mb = 2 * (folder / "model.safetensors").stat().st_size / 1e6
    shared, workers = ForkClient(), []
    try:
        for name in ("w0", "w1", "w2"):
            forks = ForkClient(os.dup(shared._socket.fileno()))
            workers.append(InferenceWorker(name, on_exit=print, forks=forks))
        workers[0].assign(1, [Assignment("0", 0, table("Echo"), [f"wait:{tmp_path / 'go'}"])])
        until(lambda: workers[0].state().computing)
        workers[0].prepare(1, [bert])  # while it computes
        until(lambda: len(forked(shared)) == 4)
        assert answers(workers[1], bert, "the cat sat")
        (tmp_path / "go").touch()
        (waited,) = until(lambda: workers[0].collect(1, [], 0.25).results)
        workers[0].collect(1, [waited.batch_id], 0)
        found = [answers(worker, bert, "the cat sat", job="2") for worker in workers]
        assert found[0] == found[1] == found[2]
        processes = computing(shared)
        assert len(processes) == 3 + 1
        assert len(forked(shared)) == 4 + 3  # the fork server, that with the libraries, and that with the model
        assert weights_mb > 120
        assert max(memory_mb(one.pid)["Private_Dirty"] for one in processes) < weights_mb / 2
        total_mb = sum(memory_mb(one.pid)["Pss"] for one in forked(shared))
        assert total_mb < 2 * weights_mb + 500  # of three workers; the libraries have 300 MB
        (loader,) = {one.parent() for one in processes} - {forked(shared)[0]}
        assert loader is not None
        loader.kill()  # the model is loaded again for the next worker, and those that have it continue
        workers.append(InferenceWorker("w3", on_exit=print, forks=ForkClient(os.dup(shared._socket.fileno()))))
        assert [answers(worker, bert, "the cat sat", job="3") for worker in workers[2:]] == found[:2]
    finally:
        for worker in workers:
            worker.close()
        shared.close()


@pytest.mark.long
def test_requests_to_a_fork_server_that_is_started_again_are_answered() -> None:
    ours, theirs = sockets()
    client = ForkClient(ours.detach())
    with theirs:
        request = client.request(Request([], fork=False))
        server = start(theirs)
        assert request.recv(100) == b'{"ready":true}\n'
        request.close()
        server.kill()
        server.communicate()
        server = start(theirs)
        client.prepare([])
        server.kill()
        server.communicate()
    client.close()


def test_what_is_no_request_changes_nothing(forks: ForkClient) -> None:
    for body in (b"{", b'{"modules": 1}', b"\xff" * 100):
        forks._socket.send(body)
    forks.prepare([])

"""A worker without a transport: the guarantees of its methods."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from chimera.core.errors import ConfigurationError
from chimera.engines.http import wire
from chimera.inference.models.spec import key_of
from chimera.inference.remote_workers.models import ForeignModels
from chimera.inference.worker import computation, kept_results, model_processes
from chimera.inference.worker.protocol import Assignment, Collected, Finished, StaleEpoch
from chimera.inference.worker.time_limit import TimeLimit
from chimera.inference.worker.worker import InferenceWorker
from inference import model
from inference.journal_kit import LIMIT_S
from inference.running import until

FILE = str(Path(model.__file__).resolve())


def table(factory: str = "Echo", **options: Any) -> dict[str, Any]:
    return {"kind": "factory", "factory": f"{FILE}:{factory}", "options": options}


def batch(
    number: int, *queries: Any, job: str = "1", of: dict[str, Any] | None = None, limit_s: float = 0.0
) -> Assignment:
    return Assignment(job, number, table() if of is None else of, list(queries), limit_s)


def collected(worker: InferenceWorker, true: Callable[[Collected], bool], epoch: int = 1) -> list[Collected]:
    """Return what a coordinator collects until something is true, without acknowledging it."""
    found: list[Collected] = []
    deadline_s = time.monotonic() + LIMIT_S
    while not found or not true(found[-1]):
        assert time.monotonic() < deadline_s, found[-1:]
        found.append(worker.collect(epoch, [], 0.25))
    return found


def results(worker: InferenceWorker, count: int, epoch: int = 1) -> list[Finished]:
    """Return so many results, acknowledged."""
    found: list[Finished] = []
    while len(found) < count:
        found += collected(worker, lambda told: bool(told.results), epoch)[-1].results
        worker.collect(epoch, [one.batch_id for one in found], 0)
    return found


def answers(finished: Finished) -> list[dict[str, Any]]:
    opened = wire.unpack(finished.results)
    assert isinstance(opened, list)
    return opened


def computing() -> list[psutil.Process]:
    """Return the computing processes of all workers of this process: each leads a session of its own."""
    own = psutil.Process()
    return [one for one in own.children(recursive=True) if one.parent() != own and os.getsid(one.pid) == one.pid]


@pytest.fixture
def ended() -> queue.SimpleQueue[str]:
    return queue.SimpleQueue()


@pytest.fixture
def worker(ended: queue.SimpleQueue[str]) -> Iterator[InferenceWorker]:
    made = InferenceWorker("w0", on_exit=ended.put, keep_models=2)
    yield made
    made.close()


def test_batches_are_computed_in_order_and_each_query_has_its_answer(worker: InferenceWorker) -> None:
    worker.adopt(1, "c0")
    state = worker.assign(1, [batch(0, "a", "b"), batch(1, "fail", "c"), batch(0, [1, 2.5], job="2")])
    assert {*state.queued, state.computing} - {None} == {("1", 0), ("1", 1), ("2", 0)}
    found = results(worker, 3)
    assert [one.batch_id for one in found] == [("1", 0), ("1", 1), ("2", 0)]
    assert answers(found[0]) == [{"result": "a"}, {"result": "b"}]
    assert answers(found[1]) == [{"error": "ValueError: this query fails"}, {"result": "c"}]
    assert answers(found[2]) == [{"result": "[1, 2.5]"}]
    assert [one.errors for one in found] == [0, 1, 0]
    assert all(0 < one.seconds < 10 for one in found)
    state = worker.state()
    assert (state.computing, state.queued, state.kept, state.loading) == (None, [], [], None)
    assert sum(one.seconds for one in found) < state.busy_s < state.up_s


def test_a_model_that_cannot_be_loaded_is_the_error_of_every_query(worker: InferenceWorker) -> None:
    broken, unknown = table("broken"), {"kind": "oracle"}
    worker.assign(1, [batch(0, "a", "b", of=broken), batch(1, "a", of=unknown), batch(2, "a")])
    first, second, third = results(worker, 3)
    (text,) = {one["error"] for one in answers(first)}
    assert text.startswith("the model cannot be loaded: ")
    assert "RuntimeError: the weights are missing (model.py, line " in text
    assert "oracle" in answers(second)[0]["error"]
    assert (first.errors, first.seconds, third.errors) == (2, 0.0, 0)
    assert worker.state().loaded == [key_of(table())]


def test_a_model_that_cannot_be_loaded_is_loaded_once_for_each_job_until_some_time_has_passed(
    worker: InferenceWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = table("broken", log=str(tmp_path / "loads"))

    def loads_after(*batches: Assignment) -> int:
        worker.assign(1, list(batches))
        assert [one.errors for one in results(worker, len(batches))] == [1] * len(batches)
        return len((tmp_path / "loads").read_text())

    assert loads_after(*(batch(i, "a", of=broken) for i in range(4))) == 1
    assert loads_after(batch(0, "a", of=broken, job="2"), batch(5, "a", of=broken)) == 2
    monkeypatch.setattr(model_processes, "RETRY_S", 0.0)
    assert loads_after(batch(0, "a", of=broken, job="3"), batch(1, "a", of=broken, job="3")) == 4


def test_the_models_used_last_stay_in_memory(worker: InferenceWorker) -> None:
    a, b, c = (table(name=name) for name in "abc")
    worker.assign(1, [batch(i, "?", of=one) for i, one in enumerate((a, b, a, c, a))])
    found = results(worker, 5)
    assert [answers(one)[0]["result"] for one in found] == ["a?", "b?", "a?", "c?", "a?"]
    assert {*worker.state().loaded} == {key_of(a), key_of(c)}


def test_to_prepare_for_a_kind_that_is_unknown_or_named_by_path_runs_nothing(
    worker: InferenceWorker, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    worker.prepare(1, [{"kind": "oracle"}, {"kind": f"{FILE}:broken", "log": str(log)}, {"kind": 3}, {}])
    worker.assign(1, [batch(0, "a")])
    assert answers(results(worker, 1)[0]) == [{"result": "a"}]
    assert not log.exists()


def test_loading_is_told_and_is_not_part_of_the_seconds(worker: InferenceWorker, tmp_path: Path) -> None:
    slow = table("Slow", file=str(tmp_path / "go"))
    worker.assign(1, [batch(0, "a", of=slow)])
    loading = collected(worker, lambda told: told.state.loading is not None)[-1].state
    assert (loading.loading, loading.computing, loading.loaded) == (key_of(slow), ("1", 0), [])
    threading.Event().wait(0.3)
    (tmp_path / "go").touch()
    (done,) = results(worker, 1)
    assert done.seconds < 0.2
    assert worker.state().busy_s > 0.3
    assert worker.state().loaded == [key_of(slow)]


def test_no_batch_is_computed_twice_and_results_stay_until_they_are_acknowledged(
    worker: InferenceWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = tmp_path / "go"
    both = [batch(0, f"wait:{go}"), batch(1, "b")]
    for _ in range(3):
        worker.assign(1, both)
    go.touch()
    sent: list[Finished] = []
    while len(sent) < 2:
        sent += worker.collect(1, [], 0.25).results
    assert [one.batch_id for one in sent] == [("1", 0), ("1", 1)]
    state = worker.assign(1, both)
    assert (state.queued, state.computing, state.kept) == ([], None, [("1", 0), ("1", 1)])
    assert worker.collect(1, [("1", 0)], 0).results == []
    monkeypatch.setattr(kept_results, "_RESEND_S", 0.0)  # as if a second had passed: the answer was lost, maybe
    assert [one.batch_id for one in worker.collect(1, [], 0).results] == [("1", 1)]
    assert worker.collect(1, [("1", 1)], 0).state.kept == []


def test_a_successor_gets_the_results_that_the_last_coordinator_did_not_acknowledge(worker: InferenceWorker) -> None:
    worker.adopt(1, "c0")
    worker.assign(1, [batch(0, "a")])
    (sent,) = collected(worker, lambda told: bool(told.results))[-1].results
    assert worker.collect(1, [], 0).results == []
    assert worker.adopt(2, "c1").kept == [sent.batch_id]
    assert worker.collect(2, [], 0).results == [sent]


def test_who_is_of_a_lower_epoch_is_refused(worker: InferenceWorker) -> None:
    worker.adopt(2, "c1")
    worker.assign(2, [batch(0, "a")])
    for stale in (
        lambda: worker.adopt(1, "c0"), lambda: worker.assign(1, [batch(1, "b")]), lambda: worker.forget(1, ["1"]),
        lambda: worker.prepare(1, [table()]),
        lambda: worker.collect(1, [("1", 0)], 0), lambda: worker.stop(1),
    ):  # fmt: skip
        with pytest.raises(StaleEpoch, match="serves epoch 2: epoch 1 is over"):
            stale()
    assert [one.batch_id for one in results(worker, 1, epoch=2)] == [("1", 0)]
    assert worker.epoch == 2


def test_a_request_that_waits_ends_when_a_successor_comes(worker: InferenceWorker) -> None:
    worker.adopt(1, "c0")
    ended: queue.SimpleQueue[object] = queue.SimpleQueue()

    def wait() -> None:
        try:
            while True:
                worker.collect(1, [], 0.25)
        except StaleEpoch as error:
            ended.put(error)

    thread = threading.Thread(target=wait)
    thread.start()
    worker.adopt(2, "c1")
    assert isinstance(ended.get(timeout=LIMIT_S), StaleEpoch)
    thread.join(LIMIT_S)


def test_what_is_forgotten_is_dropped_and_what_computes_it_is_killed(worker: InferenceWorker, tmp_path: Path) -> None:
    worker.assign(1, [batch(0, f"wait:{tmp_path / 'never'}"), batch(1, "b"), batch(0, "c", job="2")])
    collected(worker, lambda told: told.state.computing is not None)
    state = worker.forget(1, ["1"])
    assert (state.computing, state.queued, state.kept) == (None, [("2", 0)], [])
    (done,) = results(worker, 1)
    assert (done.batch_id, answers(done), done.failure) == (("2", 0), [{"result": "c"}], "")


def test_a_failed_batch_that_is_assigned_again_is_computed_again_and_a_late_acknowledgement_drops_no_result(
    worker: InferenceWorker,
) -> None:
    worker.assign(1, [batch(0, "die")])
    (failed,) = collected(worker, lambda told: bool(told.results))[-1].results
    assert failed.failure
    worker.assign(1, [batch(0, "a")])
    until(lambda: (worker.state().queued, worker.state().computing) == ([], None))
    (done,) = worker.collect(1, [failed.batch_id], 0).results
    assert answers(done) == [{"result": "a"}]


@pytest.mark.parametrize("query", ["die", "orphan"])
def test_a_batch_that_ends_the_process_fails_and_the_worker_goes_on(
    worker: InferenceWorker, ended: queue.SimpleQueue[str], query: str
) -> None:
    worker.assign(1, [batch(0, "a"), batch(1, query, "b"), batch(2, "c")])
    first, failed, last = results(worker, 3)
    assert [answers(one) for one in (first, last)] == [[{"result": "a"}], [{"result": "c"}]]
    assert (failed.batch_id, failed.failure, failed.errors) == (("1", 1), "its process exited with code 9", 2)
    assert not failed.loading
    assert ended.empty()


def test_a_batch_over_its_time_limit_fails_also_if_its_process_is_stopped(
    worker: InferenceWorker, tmp_path: Path
) -> None:
    worker.assign(1, [batch(0, "a", limit_s=60.0), batch(1, f"wait:{tmp_path / 'never'}", limit_s=0.2), batch(2, "c")])
    _, failed, last = results(worker, 3)
    assert (failed.batch_id, failed.failure) == (("1", 1), "the batch took longer than 0.2 s")
    assert answers(last) == [{"result": "c"}]
    (process,) = computing()
    process.suspend()
    worker.assign(1, [batch(3, "x" * (1 << 20), limit_s=1.2), batch(4, "e")])
    collected(worker, lambda told: told.state.silent)
    failed, last = results(worker, 2)
    assert (failed.batch_id, failed.failure) == (("1", 3), "the batch took longer than 1.2 s")
    assert answers(last) == [{"result": "e"}]
    assert not worker.state().silent


def test_the_time_limit_of_a_batch_begins_when_its_model_is_loaded(
    worker: InferenceWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = table("Slow", file=str(tmp_path / "go"))
    worker.assign(1, [batch(0, "a", of=slow, limit_s=0.2)])
    collected(worker, lambda told: told.state.loading is not None)
    threading.Event().wait(0.4)
    (tmp_path / "go").touch()
    assert answers(results(worker, 1)[0]) == [{"result": "a"}]
    monkeypatch.setattr(computation, "_LOAD_LIMIT_S", 0.2)
    worker.assign(1, [batch(1, "a", of=table("Slow", file=str(tmp_path / "never")), limit_s=60.0)])
    (failed,) = results(worker, 1)
    assert (failed.failure, failed.loading) == ("loading the model took longer than 0.2 s", True)
    assert worker.state().loaded == [key_of(slow)]  # a killed process costs its own model only


def test_the_time_limit_of_a_first_batch_grows_with_the_load_of_its_model(
    worker: InferenceWorker, tmp_path: Path
) -> None:
    slow, never = table("Slow", file=str(tmp_path / "go")), f"wait:{tmp_path / 'never'}"
    worker.assign(1, [Assignment("1", 0, slow, ["a"])])
    collected(worker, lambda told: told.state.loading is not None)
    threading.Event().wait(0.3)
    (tmp_path / "go").touch()
    results(worker, 1)
    worker.assign(1, [Assignment("1", 1, slow, [never], 0.01, 2.0), Assignment("1", 2, slow, [never], 0.01, 0.0)])
    grown, plain = results(worker, 2)
    assert 0.2 < float(grown.failure.split()[-2]) < 10
    assert plain.failure == "the batch took longer than 0.01 s"


def test_time_in_which_the_worker_itself_was_stopped_does_not_count() -> None:
    times_s = iter([0.0, 0.5, 1.0, 1000.0, 1001.0, 1002.0, 1009.0])
    limit = TimeLimit(clock=lambda: next(times_s))
    limit.start("the batch", 4.0)
    assert [limit.left_s() for _ in range(6)] == [3.5, 3.0, 2.0, 1.0, 0.0, 0.0]
    limit.stop()
    assert TimeLimit().left_s() is None
    unlimited = TimeLimit()
    unlimited.start("the batch", 0.0)
    assert unlimited.left_s() is None


def test_a_process_that_dies_while_it_is_idle_costs_its_model_only(
    worker: InferenceWorker, ended: queue.SimpleQueue[str]
) -> None:
    a, b = table(name="a"), table(name="b")
    worker.assign(1, [batch(0, "?", of=a), batch(1, "?", of=b)])
    results(worker, 2)
    computing()[0].kill()
    until(lambda: len(worker.state().loaded) == 1)
    worker.assign(1, [batch(3, "?", of=a), batch(4, "?", of=b)])
    assert [answers(one)[0]["result"] for one in results(worker, 2)] == ["a?", "b?"]
    assert ended.empty()


def test_a_batch_that_is_sent_ahead_is_computed_before_those_that_are_not_begun(
    worker: InferenceWorker, tmp_path: Path
) -> None:
    worker.assign(1, [batch(0, f"wait:{tmp_path / 'go'}"), batch(1, "a")])
    until(lambda: worker.state().computing == ("1", 0))
    worker.assign(1, [msgspec.structs.replace(batch(2, "b"), ahead=True)])
    assert worker.state().queued == [("1", 2), ("1", 1)]
    (tmp_path / "go").touch()
    assert [one.batch for one in results(worker, 3)] == [0, 2, 1]


def test_a_worker_that_is_closed_has_not_died(ended: queue.SimpleQueue[str], tmp_path: Path) -> None:
    made = InferenceWorker("w0", on_exit=ended.put)
    made.assign(1, [batch(0, f"wait:{tmp_path / 'never'}")])
    made.close()
    assert ended.empty()


def test_what_cannot_start_is_told() -> None:
    with pytest.raises(ConfigurationError, match="keep_models must be at least 1"):
        InferenceWorker("w0", on_exit=print, keep_models=0)


@pytest.mark.long
def test_it_answers_at_once_while_python_is_held_up(worker: InferenceWorker) -> None:
    """While a model holds Python up for a second or more, a worker of threads would answer once or twice."""
    worker.assign(1, [batch(0, "a", of=table("Hog"))])
    finished: list[Finished] = []
    answers_meanwhile = 0
    while not finished:
        finished = worker.collect(1, [], 0.05).results
        answers_meanwhile += 1
    assert answers_meanwhile > 5


def test_it_computes_where_it_is_told_to(ended: queue.SimpleQueue[str], tmp_path: Path) -> None:
    (tmp_path / "here.py").write_text("class Own:\n    def predict(self, queries):\n        return queries\n")
    made = InferenceWorker("w0", on_exit=ended.put, folder=tmp_path)
    try:
        made.assign(1, [batch(0, "a", of={"kind": "factory", "factory": "here.py:Own", "options": {}})])
        assert answers(results(made, 1)[0]) == [{"result": "a"}]
    finally:
        made.close()


def test_a_worker_that_leaves_finishes_its_batches_and_waits_until_they_are_acknowledged(
    worker: InferenceWorker,
) -> None:
    worker.adopt(1, "c0")
    worker.assign(1, [batch(0, "a"), batch(1, "b")])
    leaving = threading.Thread(target=worker.leave, daemon=True)
    leaving.start()
    collected(worker, lambda told: told.state.draining)
    found = collected(worker, lambda told: not told.state.queued and told.state.computing is None)
    assert found[-1].state.kept
    assert leaving.is_alive()
    worker.collect(1, [("1", 0), ("1", 1)], 0)
    leaving.join(LIMIT_S)
    assert not leaving.is_alive()


def test_a_worker_of_another_machine_loads_no_model_that_runs_code_unless_that_is_allowed(tmp_path: Path) -> None:
    for code in (False, True):
        foreign = ForeignModels("b.w0", code=code, cache=None)
        worker = InferenceWorker("b.w0", on_exit=lambda _: None, models=foreign)
        try:
            worker.assign(1, [batch(0, "a", "b")])
            (done,) = results(worker, 1)
            assert done.unloaded is not code
            if code:
                assert answers(done) == [{"result": "a"}, {"result": "b"}]
                assert worker.state().loaded == [key_of(table())]
            else:
                assert (done.errors, worker.state().loaded) == (2, [])
                assert "runs code, which the machine of b.w0 refuses" in done.error
        finally:
            worker.close()

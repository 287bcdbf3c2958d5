"""`chimera.remote.run` on all engines: results, messages, collectives, deadlocks, failures and invalid arguments."""

from __future__ import annotations

import importlib.util
import operator
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import chimera
from chimera.core import call
from chimera.core.engine import ENGINES, Engine
from chimera.core.errors import ActorLost, ConfigurationError, RunError, TimeLimitError
from chimera.remote import Worker, run

EXAMPLES = Path(__file__).parents[2] / "examples"
RAY = [pytest.param("ray", marks=pytest.mark.long)] if importlib.util.find_spec("ray") else []


@pytest.fixture(scope="module", params=["simulated", "local", *RAY])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with ENGINES.create(request.param) as engine:
        yield engine


def all_operations(worker: Worker, number: float) -> tuple[Any, ...]:
    left, right = (worker.rank - 1) % worker.world_size, (worker.rank + 1) % worker.world_size
    for turn in range(3):
        worker.send(right, {"from": worker.rank, "turn": turn, "array": np.full(4, number * worker.rank)})
    received = [worker.recv(left) for _ in range(3)]
    worker.barrier()
    return (
        (worker.rank, worker.world_size),
        [(message["from"], message["turn"], message["array"].tolist()) for message in received],
        worker.all_reduce(np.arange(6, dtype=np.float32).reshape(2, 3) + worker.rank, "mean"),
        worker.all_reduce(worker.rank, "max"),
        worker.all_gather(chr(ord("a") + worker.rank)),
        worker.broadcast([worker.rank], root=2),
    )


def test_results_are_in_rank_order_and_messages_in_order_of_sending(engine: Engine) -> None:
    results = run(all_operations, 0.5, workers=3, engine=engine)
    assert [result[0] for result in results] == [(0, 3), (1, 3), (2, 3)]
    for rank, (_, received, mean, maximum, gathered, broadcast) in enumerate(results):
        left = (rank - 1) % 3
        assert received == [(left, turn, [0.5 * left] * 4) for turn in range(3)]
        assert mean.dtype == np.float32
        np.testing.assert_array_equal(mean, np.arange(6, dtype=np.float32).reshape(2, 3) + 1)
        assert (maximum, gathered, broadcast) == (2, ["a", "b", "c"], [2])


def test_a_sent_array_does_not_change_when_the_sender_writes_to_it(engine: Engine) -> None:
    def send_and_write(worker: Worker) -> float | None:
        if worker.rank == 1:
            return float(worker.recv(0).sum())
        array = np.ones(1000)
        worker.send(1, array)
        array[:] = 7
        return None

    assert run(send_and_write, workers=2, engine=engine) == [None, 1000.0]


@pytest.mark.long
def test_an_exception_stops_all_workers_and_names_rank_and_function(engine: Engine) -> None:
    def fails_on_the_last(worker: Worker) -> Any:
        return {}["missing"] if worker.rank == 2 else worker.recv(2)

    with pytest.raises(KeyError, match="missing") as caught:
        run(fails_on_the_last, workers=3, engine=engine)
    (note,) = caught.value.__notes__
    assert note.startswith("on worker 2 of 3")
    assert "in fails_on_the_last" in note


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda w: w.recv(1) if w.rank == 0 else None,
            "worker 0 waits for a message from worker 1; worker 1 has ended",
        ),
        (lambda w: w.recv(1 - w.rank), "worker 0 waits for a message from worker 1; worker 1 waits for a message from"),
        (lambda w: w.barrier() if w.rank else w.recv(1), "worker 1 waits in barrier"),
    ],
)
def test_a_deadlock_is_detected(engine: Engine, function: Callable[..., Any], message: str) -> None:
    with pytest.raises(RunError, match=message):
        run(function, workers=2, engine=engine)


def test_different_collectives_are_refused(engine: Engine) -> None:
    with pytest.raises(ConfigurationError, match=r"worker 0: all_reduce sum of float64 \(1,\); worker 1: .*\(2,\)"):
        run(lambda worker: worker.all_reduce(np.ones(worker.rank + 1)), workers=2, engine=engine)


def test_sys_exit_in_a_function_does_not_end_the_caller(engine: Engine) -> None:
    with pytest.raises(RunError, match=r"the function called sys.exit\(3\)"):
        run(lambda worker: sys.exit(3), workers=1, engine=engine)


def test_a_result_that_cannot_be_pickled_is_named(engine: Engine) -> None:
    with pytest.raises(ConfigurationError, match="returned a lock, which cannot be pickled") as caught:
        run(lambda worker: threading.Lock(), workers=1, engine=engine)
    assert "on worker 0 of 1" in caught.value.__notes__[0]


@pytest.mark.long
@pytest.mark.parametrize("name", ["local", *RAY])
def test_a_dead_worker_stops_all_workers(name: str) -> None:
    def killed(worker: Worker) -> Any:
        worker.barrier()
        if worker.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return worker.all_reduce(np.ones(3, np.float32))

    with pytest.raises(ActorLost, match="worker 1"):
        run(killed, workers=3, engine=name)


def test_a_crash_in_virtual_time_stops_all_workers() -> None:
    def computes(worker: Worker) -> None:
        call.work(samples=1)
        worker.barrier()
        call.work(samples=1)

    options = {"compute": {"seconds_per_sample": 1.0}, "availability": {"crash": {"worker 1": 1.5}}}
    with pytest.raises(ActorLost, match="worker 1"):
        run(computes, workers=3, engine={"name": "simulated", **options})
    with chimera.engine("simulated", compute={"seconds_per_sample": 1.0}) as engine:
        run(computes, workers=3, engine=engine)
        assert 2 <= engine.now() < 2.1


def test_a_timeout_reports_what_each_worker_did() -> None:
    def slow(worker: Worker) -> None:
        if worker.rank == 0:
            worker.recv(1)
        call.work(samples=100)

    message = "within 5 s: worker 0 waits for a message from worker 1; worker 1 computes"
    with pytest.raises(TimeLimitError, match=message):
        run(slow, workers=2, engine={"name": "simulated", "compute": {"seconds_per_sample": 1.0}}, timeout_s=5)


@pytest.mark.long
def test_a_timeout_stops_a_function_that_never_returns() -> None:
    with pytest.raises(TimeLimitError, match=r"within 0\.5 s: worker 0 computes"):
        run(lambda worker: threading.Event().wait(), workers=1, engine="local", timeout_s=0.5)


def test_suspended_functions_are_unwound() -> None:
    unwound: list[int] = []
    waits_and_cleans_up.unwound = unwound  # type: ignore[attr-defined]
    before = set(threading.enumerate())
    with pytest.raises(RunError, match="deadlock"):
        run(waits_and_cleans_up, workers=2, engine="simulated")
    assert unwound == [0, 1]
    assert "chimera call" not in {thread.name for thread in set(threading.enumerate()) - before}


def waits_and_cleans_up(worker: Worker) -> None:
    try:
        worker.recv(1 - worker.rank)
    finally:
        waits_and_cleans_up.unwound.append(worker.rank)  # type: ignore[attr-defined]


NUMBERS = st.sampled_from([np.float32, np.float64, np.int64, np.uint8]).flatmap(
    lambda dtype: arrays.arrays(
        dtype,
        st.tuples(st.integers(1, 4), st.integers(0, 5), st.integers(1, 2)),  # one row for each worker
        elements=None if np.issubdtype(dtype, np.integer) else {"min_value": -1e6, "max_value": 1e6},
    )
)


@given(NUMBERS)
def test_all_reduce_sums_in_rank_order_with_the_same_bits_on_all_workers(rows: np.ndarray) -> None:
    results = run(lambda worker: worker.all_reduce(rows[worker.rank]), workers=len(rows), engine="simulated")
    with np.errstate(all="ignore"):
        total = reduce(operator.add, list(rows))
    for result in results:
        assert result.dtype == rows.dtype
        assert result.tobytes() == total.tobytes()


@pytest.mark.long
@given(st.data())
def test_each_message_arrives_once_and_in_order_for_any_order_of_receiving(data: st.DataObject) -> None:
    rank = st.integers(0, 2)
    sent = data.draw(st.lists(st.tuples(rank, rank), max_size=12))
    orders = [data.draw(st.permutations([source for source, to in sent if to == rank])) for rank in range(3)]

    def exchange(worker: Worker) -> dict[int, list[int]]:
        for number, (source, to) in enumerate(sent):
            if source == worker.rank:
                worker.send(to, number)
        received: dict[int, list[int]] = {}
        for source in orders[worker.rank]:
            received.setdefault(source, []).append(worker.recv(source))
        return received

    for to, received in enumerate(run(exchange, workers=3, engine="simulated")):
        assert received == {
            source: [n for n, pair in enumerate(sent) if pair == (source, to)] for source in set(orders[to])
        }


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (lambda: 1, {}, "cannot be called with a worker and 0 arguments"),
        (3, {}, "needs a function, not 3"),
        (lambda worker: 1, {"workers": 0}, "workers must be a whole number from 1, not 0"),
        (lambda worker: 1, {"timeout_s": 0}, "timeout_s must be above zero"),
        (lambda worker: worker.send(4, 1), {}, "there is no worker 4: ranks are 0 to 3"),
        (lambda worker: worker.all_reduce(1, "xor"), {}, "no op 'xor'; it has sum, mean, min, max"),
        (lambda worker: worker.all_reduce("text"), {}, "takes numbers"),
        (lambda worker: 1, {"engine": {"name": "http", "nodes": ["http://127.0.0.1:9"]}}, "accept no code"),
    ],
)
def test_invalid_arguments_are_refused(function: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        run(function, **{"engine": "simulated", **options})


@pytest.mark.long
@pytest.mark.parametrize("name", ["simulated", "local", *RAY])
def test_the_examples_run_from_a_script(name: str) -> None:
    def lines(example: str) -> list[str]:
        command = [sys.executable, EXAMPLES / example, name]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    greetings = lines("hello_world.py")
    assert [line.partition(", process")[0] for line in greetings] == [
        f"worker {rank} received: hello from worker {(rank - 1) % 4}" for rank in range(4)
    ]
    assert all(line.endswith("the total is 499999500000") for line in lines("reduce_sum.py"))

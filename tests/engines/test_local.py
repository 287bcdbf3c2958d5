"""Promises of the local engine beyond the protocol: reuse of shared memory, cheap processes."""

from __future__ import annotations

import contextlib
import marshal
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from chimera.core import call
from chimera.core.errors import ActorLost, ConfigurationError, RunError
from chimera.core.message import Encoded
from chimera.engines.local import Local
from chimera.engines.local.process import actor_name
from chimera.engines.local.ring_buffers import CALLS_BYTES, ROWS
from chimera.engines.shared_memory.memory import BELL_AT, MAX_ACTORS, ROWS_WRITTEN, SLOTS
from chimera.engines.shared_memory.notifier import Notifier

BIG = 10_000_000


class Store:
    """Keeps, makes and measures arrays."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def make(self, size: int, value: float = 1.0) -> np.ndarray[Any, Any]:
        return np.full(size, value, np.float32)

    def keep(self, array: np.ndarray[Any, Any]) -> None:
        self.kept.append(array)

    def kept_sums(self) -> list[float]:
        return [float(array.sum()) for array in self.kept]

    def forget(self) -> None:
        self.kept.clear()

    def is_shared(self, array: np.ndarray[Any, Any]) -> bool:
        """Return whether the array is where its producer put it, in the memory that all processes map."""
        return not array.flags.owndata and not array.flags.writeable

    def used(self) -> int:
        """Return the largest part of the heap that was ever used, in bytes."""
        return call._actor_context.memory.heap._end  # type: ignore[attr-defined]

    def echo(self, value: Any) -> Any:
        return value

    def both(self, one: Any, other: Any) -> tuple[Any, Any]:
        return one, other

    def fail_as(self, name: str) -> None:
        raise type(name, (Exception,), {})("raised on purpose")

    def pid(self) -> int:
        return os.getpid()

    def feed(self, other: Any, size: int, times: int) -> Any:
        """Let another actor keep and delete arrays of this one, and wait for the end of that only; return the rest."""
        for _ in range(times):
            other.keep(np.ones(size, np.float32))
            other.forget()
        return call.get(other.kept_sums())

    def feed_results(self, other: Any, size: int, times: int) -> float:
        """Take results of another actor, and return them to it."""
        for _ in range(times):
            other.keep(other.make(size))
            other.forget()
            made = call.get(other.make(size))
        return float(made.sum())

    def plan(self, value: float, *, fails: bool = False) -> None:
        """Keep a value once the result of this call is known, and then fail or not."""

        def later() -> None:
            self.kept.append(np.array([value]))
            if fails:
                raise ValueError("too late to tell")

        call.afterwards(later)

    def open_gate(self, path: str) -> str:
        """Return what a process writes to a named pipe."""
        return Path(path).read_text()


@pytest.fixture(scope="module")
def engine() -> Iterator[Local]:
    with Local(preload=[]) as engine:
        yield engine


def test_a_large_array_is_copied_once_and_its_memory_used_again(engine: Local) -> None:
    maker, reader = engine.spawn(Store), engine.spawn(Store)
    assert engine.get(reader.is_shared(maker.make(BIG)))
    used = engine.get(maker.used())
    for _ in range(20):
        assert engine.get(reader.is_shared(maker.make(BIG)))
    assert engine.get(maker.used()) <= used + 4 * BIG * 1.2


def test_a_value_that_somebody_keeps_is_never_written_over(engine: Local) -> None:
    maker, keeper = engine.spawn(Store), engine.spawn(Store)
    for value in range(5):
        engine.get(keeper.keep(maker.make(100_000, float(value))))
    assert engine.get(keeper.kept_sums()) == [value * 100_000 for value in range(5)]
    engine.get(keeper.forget())
    used = engine.get(maker.used())
    for _ in range(10):
        engine.get(keeper.echo(maker.make(100_000)))
    assert engine.get(maker.used()) == used


def test_what_the_driver_fetched_stays_after_the_engine_is_gone() -> None:
    with Local(preload=[]) as engine:
        array = engine.get(engine.spawn(Store).make(1000, 3.0))
    assert array.sum() == 3000


def test_the_memory_of_the_dead_is_not_waited_for(engine: Local) -> None:
    maker, keeper = engine.spawn(Store), engine.spawn(Store)
    for _ in range(3):
        engine.get(keeper.keep(maker.make(BIG // 10)))
    engine.kill(keeper)
    used = engine.get(maker.used())
    for _ in range(3):
        engine.get(maker.make(BIG // 10))
    assert engine.get(maker.used()) == used


plain_arrays = hnp.arrays(
    st.sampled_from([np.float32, np.float64, np.int64, np.uint8, np.bool_, np.complex64]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
)
values = st.recursive(
    st.none() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary() | plain_arrays,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


@settings(max_examples=60, deadline=None)
@given(value=values)
def test_values_come_back_as_they_went(engine: Local, value: Any) -> None:
    if not hasattr(engine, "echo_actor"):
        engine.echo_actor = engine.spawn(Store)  # type: ignore[attr-defined]
    echo = engine.echo_actor.echo  # type: ignore[attr-defined]
    assert same(engine.get(echo(value)), value)
    assert same(engine.get(echo(engine.put(value))), value)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(10)[::2],
        np.asfortranarray(np.ones((3, 4))),
        np.array(["a", "bc"]),
        np.array([1, None], object),
        np.array([("x", 1)], dtype=[("name", "U4"), ("n", "i8")]),
        np.ma.masked_array([1, 2], [True, False]),
    ],
    ids=lambda array: str(array.dtype),
)
def test_arrays_of_every_kind_travel(engine: Local, array: Any) -> None:
    back = engine.get(engine.spawn(Store).echo(array))
    assert type(back) is type(array)
    assert np.array_equal(back, array)
    assert back.dtype == array.dtype


def test_an_encoded_vector_travels_without_a_pickle(engine: Local) -> None:
    encoded = Encoded("identity", 3, (np.arange(3, dtype=np.float32), np.array([7], np.uint8)), {"scale": 0.5})
    back = engine.get(engine.spawn(Store).echo(encoded))
    assert (back.codec, back.size, back.meta, back.nbytes) == ("identity", 3, {"scale": 0.5}, encoded.nbytes)
    assert all(same(a, b) for a, b in zip(back.arrays, encoded.arrays, strict=True))


def test_more_calls_than_the_rings_hold(engine: Local) -> None:
    store = engine.spawn(Store)
    text = "x" * (CALLS_BYTES // 1000)
    refs = [store.echo(text + str(i)) for i in range(2000)]
    assert engine.get(refs[-1]) == text + "1999"
    for _ in range(ROWS + 100):
        last = store.pid()
    engine.get(last)
    assert len([row for row in engine.trace() if row.call == "pid" and row.actor == store.name]) == ROWS + 100


@pytest.mark.long
def test_a_driver_that_outruns_an_actor_waits_for_it(engine: Local) -> None:
    store = engine.spawn(Store)
    kept = [store.pid() for _ in range(1000)]
    for _ in range(20):
        store.make(BIG)  # keeps the actor busy for longer than the driver needs to use up its slots
    for _ in range(SLOTS):
        last = store.pid()
    assert engine.get(last) == engine.get(kept[0])


def test_too_many_living_values_is_one_line(engine: Local) -> None:
    store = engine.spawn(Store)
    refs = [store.pid() for _ in range(SLOTS - 1)]
    with pytest.raises(RunError, match="delete refs"):
        refs.extend(store.pid() for _ in range(10))
    engine.get(refs)
    del refs
    assert engine.get(store.pid()) > 0


def test_too_many_actors_is_one_line() -> None:
    with Local(preload=[]) as engine:
        engine._channels.extend([engine._calls.own] * (MAX_ACTORS - 1))
        with pytest.raises(ConfigurationError, match="at most; the simulated one"):
            engine.spawn(Store)
        engine._channels.clear()


class Asker:
    """Calls another actor."""

    def __init__(self, other: Any) -> None:
        self.other = other

    def ask(self, value: Any) -> Any:
        return call.get(self.other.echo(value))


def test_what_a_dead_caller_had_asked_for_stops_nobody_if_it_is_found_late(engine: Local) -> None:
    store = engine.spawn(Store)
    dead, living = (engine.spawn(Asker, store) for _ in range(2))
    assert engine.get([dead.ask(1), living.ask(2)]) == [1, 2]
    number = next(channel.actor for channel in engine._channels if channel.name == dead.name)
    engine.kill(dead)
    engine._relay.wake()  # it deletes the refs of dead actors; then a call has one of them as an argument
    engine._relay.actor_socket.send(marshal.dumps([number, [], (1, "echo", None, [(9, 99)], [7], {}, None), []]))
    assert engine.get(living.ask(3), timeout_s=30) == 3


@pytest.mark.long
def test_workers_of_the_fork_server_are_light_and_have_one_thread() -> None:
    class Light:  # sent by value, so that a worker does not import pytest, hypothesis and the rest of this module (28 MB)
        def process(self) -> tuple[int, int, bool]:
            return os.getpid(), len(list(Path("/proc/self/task").iterdir())), "pytest" in sys.modules

    with Local(preload=["torch"]) as engine:
        processes = engine.get([actor.process() for actor in [engine.spawn(Light) for _ in range(4)]])
        shares = [psutil.Process(pid).memory_full_info().pss for pid, _, _ in processes]
    assert [state[1:] for state in processes] == [(1, False)] * 4
    assert max(shares) < 45 * 2**20


def second_fork_raises(folder: Path, error: str) -> str:
    """Write a module that lets the second fork of its process fail; return its name."""
    name = f"second_fork_{error.split('(')[0].lower()}"
    (folder / f"{name}.py").write_text(
        "import errno, os\n"
        "fork, left = os.fork, [1]\n"
        "def limited():\n"
        "    if not left:\n"
        f"        raise {error}\n"
        "    left.pop()\n"
        "    return fork()\n"
        "os.fork = limited\n"
    )
    return name


def test_an_actor_without_a_process_is_lost_and_the_others_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    with Local(preload=[second_fork_raises(tmp_path, "OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))")]) as engine:
        store, refused = engine.spawn(Store), engine.spawn(Store, name="worker 1")
        with pytest.raises(ActorLost):
            engine.get(refused.echo(1), timeout_s=30)
        assert engine.get(store.echo(2), timeout_s=30) == 2
    told = [line for line in capfd.readouterr().err.splitlines() if "worker 1" in line]
    assert told == ["worker 1 has no process: [Errno 11] Resource temporarily unavailable; end other processes"]


def test_an_error_of_the_fork_server_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    with Local(preload=[second_fork_raises(tmp_path, "ZeroDivisionError('of the server')")]) as engine:
        actors = [engine.spawn(Store) for _ in range(2)]
        with pytest.raises(ActorLost):
            engine.get(actors[1].echo(1), timeout_s=30)
    assert "ZeroDivisionError: of the server" in capfd.readouterr().err


def test_a_child_of_an_imported_module_does_not_end_the_fork_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "with_a_child.py").write_text(
        "import os\n"
        "child = os.posix_spawn('/bin/true', ['true'], {})\n"
        "os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)\n"  # so that the server finds it before any actor
    )
    monkeypatch.syspath_prepend(tmp_path)
    with Local(preload=["with_a_child"]) as engine:
        first, second = engine.spawn(Store), engine.spawn(Store)
        assert engine.get([first.echo(1), second.echo(1)], timeout_s=30) == [1, 1]
        engine.kill(first)
        with pytest.raises(ActorLost):
            engine.get(first.echo(1), timeout_s=30)
        assert engine.get(second.echo(2), timeout_s=30) == 2


@pytest.mark.long
def test_the_death_of_the_fork_server_is_the_death_of_all() -> None:
    with Local(preload=[]) as engine:
        stores = [engine.spawn(Store) for _ in range(2)]
        processes = [psutil.Process(pid) for pid in engine.get([store.pid() for store in stores])]
        os.kill(engine._servers.pid, signal.SIGKILL)
        assert psutil.wait_procs(processes, timeout=5)[1] == []
        for store in stores:
            with pytest.raises(ActorLost):
                engine.get(store.pid(), timeout_s=5)


def test_the_death_of_the_driver_leaves_no_process(tmp_path: Path) -> None:
    script = tmp_path / "driver.py"
    script.write_text(
        "import os, signal, sys\n"
        "from engines.test_local import Store\n"
        "from chimera.engines.local import Local\n"
        "engine = Local(preload=[])\n"
        "print(engine._servers.pid, *engine.get([engine.spawn(Store).pid() for _ in range(2)]), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environment) as driver:
        assert driver.stdout is not None
        pids = [int(pid) for pid in driver.stdout.readline().split()]
    assert len(pids) == 3
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(pid).wait(timeout=10)


def test_an_actor_sleeps_until_the_argument_of_its_call_stands(engine: Local, tmp_path: Path) -> None:
    gate, sleeper = engine.spawn(Store), engine.spawn(Store)
    assert engine.get([gate.echo(1), sleeper.echo(1)]) == [1, 1]
    number = sleeper._channel.actor
    while not engine._memory.own.awaited[number]:
        pass  # it is about to sleep until it gets a call
    bell = engine._memory.region(number).bytes[BELL_AT : BELL_AT + 4]
    rung = bytes(bell)
    pipe = tmp_path / "gate"
    os.mkfifo(pipe)
    first = sleeper.echo(gate.open_gate(str(pipe)))
    assert bytes(bell) == rung
    second = sleeper.echo(gate.open_gate(str(pipe)))  # its first call counts: this one arrives later
    for text in ("one", "two"):
        pipe.write_text(text)
        assert engine.get({"one": first, "two": second}[text], timeout_s=30) == text
    assert bytes(bell) != rung


def test_a_note_that_its_owner_is_about_to_look_for_is_not_replaced_in_silence(engine: Local, tmp_path: Path) -> None:
    gate, sleeper = engine.spawn(Store), engine.spawn(Store)
    assert engine.get([gate.echo(1), sleeper.echo(1)]) == [1, 1]
    number, owner = sleeper._channel.actor, engine._memory.region(gate._channel.actor)
    while not engine._memory.own.awaited[number]:
        pass  # it is about to sleep until it gets a call
    bell = engine._memory.region(number).bytes[BELL_AT : BELL_AT + 4]
    pipe = tmp_path / "gate"
    os.mkfifo(pipe)
    calls = [sleeper.echo(gate.open_gate(str(pipe)))]
    rung, over = bytes(bell), owner.words[ROWS_WRITTEN]
    owner.words[ROWS_WRITTEN] = owner.concerns[
        number
    ]  # as between the row of that call and the check of the waiting processes
    calls.append(sleeper.echo(gate.open_gate(str(pipe))))
    owner.words[ROWS_WRITTEN] = over
    assert bytes(bell) != rung
    for text, ref in zip(("one", "two"), calls, strict=True):
        pipe.write_text(text)
        assert engine.get(ref, timeout_s=30) == text


def test_the_death_of_who_makes_its_argument_wakes_an_actor(engine: Local, tmp_path: Path) -> None:
    gate, sleeper = engine.spawn(Store), engine.spawn(Store)
    assert engine.get([gate.echo(1), sleeper.echo(1)]) == [1, 1]
    while not engine._memory.own.awaited[sleeper._channel.actor]:
        pass  # it is about to sleep until it gets a call
    pipe = tmp_path / "gate"
    os.mkfifo(pipe)
    refused = sleeper.echo(gate.open_gate(str(pipe)))
    engine.kill(gate)
    with pytest.raises(ActorLost):
        engine.get(refused, timeout_s=30)


def test_after_the_death_of_who_makes_one_argument_the_memory_of_the_others_is_used_again(
    engine: Local, tmp_path: Path
) -> None:
    gate, maker, reader = (engine.spawn(Store) for _ in range(3))
    pipe = tmp_path / "gate"
    os.mkfifo(pipe)
    other = maker.make(BIG // 10)
    refused = reader.both(gate.open_gate(str(pipe)), other)
    engine.get(maker.echo(1), timeout_s=30)
    engine.kill(gate)
    with pytest.raises(ActorLost):
        engine.get(refused, timeout_s=30)
    channel, slot = other.channel, other.slot
    del other
    assert channel._is_free(slot)


def test_a_name_that_is_cut_inside_a_character_is_shown_without_it(engine: Local) -> None:
    name = "n" + "\N{LATIN SMALL LETTER E WITH ACUTE}" * 300
    store = engine.spawn(Store, name=name)
    with pytest.raises(Exception, match="raised on purpose"):
        engine.get(store.fail_as(name[:20]), timeout_s=30)
    assert [row.error for row in engine.trace() if row.error.startswith("n")] == [name[:12]]
    assert actor_name(engine._memory, store._channel.actor) == name[:256]


def test_what_a_call_prepares_happens_before_the_next_and_may_fail(engine: Local) -> None:
    store = engine.spawn(Store)
    for value in (1.0, 2.0):
        assert engine.get(store.plan(value, fails=value == 1.0)) is None
    assert engine.get(store.kept_sums()) == [1.0, 2.0]


def test_where_there_is_no_futex_processes_nap_and_look(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Notifier.__init__

    def napping(self: Notifier, memory: Any) -> None:
        made(self, memory)
        self._futex = None

    monkeypatch.setattr(Notifier, "__init__", napping)
    with Local(preload=[]) as engine:  # the driver sleeps; its actors are woken as usual
        store = engine.spawn(Store)
        assert engine.get([store.echo(i) for i in range(50)]) == list(range(50))
        assert engine.wait([store.echo(1)], timeout_s=5)[1] == []


@pytest.mark.long
def test_actors_make_more_calls_than_there_are_slots(engine: Local) -> None:
    caller, callee = engine.spawn(Store), engine.spawn(Store)
    times = SLOTS // 2 + 1000
    engine.trace()  # so that what other tests called is not counted
    # two calls and one argument in shared memory each time
    assert engine.get(caller.feed(callee, 10, times), timeout_s=60) == []
    assert sum(row.call in ("keep", "forget") for row in engine.trace()) == 2 * times


def test_the_memory_of_what_actors_tell_each_other_is_used_again(engine: Local) -> None:
    caller, callee = engine.spawn(Store), engine.spawn(Store)
    size, turns, rounds = 500_000, 20, 10
    for _ in range(rounds):
        engine.get([caller.feed(callee, size, turns), caller.feed_results(callee, size, turns)], timeout_s=60)
    used = engine.get([caller.used(), callee.used()], timeout_s=60)
    assert max(used) <= 4 * size * 1.2 * 2 * turns  # the calls that can be in flight within one round of ten

"""The promises of every strategy (docs/architecture.md, section 4), one test for each: see `chimera.testing`."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import numpy as np
import pytest

from chimera.core.engine import ENGINES
from chimera.strategies.cluster import Cluster
from chimera.strategies.strategy import STRATEGIES, Round, Strategy
from chimera.testing.training import (
    BATCH,
    ROUNDS,
    SAMPLES,
    STRAGGLERS,
    WORKERS,
    Fit,
    InterruptAt,
    InterruptedRunError,
    create,
    depends_on_speed,
    epochs,
    fit_in,
    in_virtual_time,
    needs_batch_norm,
    samples_by_call,
    size,
    weights,
)
from chimera.training.experiment.resolve import open_engine, preload_of

Test = Callable[..., None]


def quick_on(*engines: str, long_on: Collection[str] = ("local",)) -> Callable[[Test], Test]:
    """Mark a test as quick on some engines, as ``long`` on others, and as ``slow`` on the rest."""

    def mark(test: Test) -> Test:
        marks = dict.fromkeys(long_on, (pytest.mark.long,))
        test.marks = {**marks, **dict.fromkeys(engines, ())}  # type: ignore[attr-defined]
        return test

    return mark


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test for every strategy, and on every engine if it asks for one."""
    if "strategy" in metafunc.fixturenames:
        asked = metafunc.config.getoption("strategy", default=None)
        metafunc.parametrize("strategy", asked or [entry.name for entry in STRATEGIES.entries() if entry.available])
    if "engine" in metafunc.fixturenames:
        asked = metafunc.config.getoption("engines", default=None)
        ray = ["ray"] if next(e for e in ENGINES.entries() if e.name == "ray").available else []
        marks = getattr(metafunc.function, "marks", {})
        marked = [
            pytest.param(name, marks=marks.get(name, (pytest.mark.slow,)))
            for name in (asked.split(",") if asked else ["simulated", "local", *ray])
        ]
        metafunc.parametrize("engine", marked, indirect=True)


@pytest.fixture(scope="module")
def engines() -> Iterator[Callable[[str], Any]]:
    """Open engines by name, one for many tests: `local` runs at most 255 actors in total, and a test needs about 12."""
    opened: dict[str, Any] = {}
    uses = Counter[str]()

    def engine(name: str) -> Any:
        if uses[name] % 20 == 0 and name == "local" and name in opened:
            opened.pop(name).close()
        if name not in opened:
            opened[name], _ = open_engine(name, preload_of())
        uses[name] += 1
        return opened[name]

    yield engine
    for each in opened.values():
        each.close()


@pytest.fixture
def engine(request: pytest.FixtureRequest, engines: Callable[[str], Any]) -> Any:
    """Return the engine of this name; in virtual time, each run creates its own engine."""
    return request.param if request.param == "simulated" else engines(request.param)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Compute with one thread, as the processes of other engines do."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def fit(tmp_path: Path) -> Fit:
    """Train a strategy, each time in a new folder."""
    return fit_in(tmp_path)


def skip_unless_others_can_continue(strategy: str) -> None:
    """Skip a test of a run that loses a worker, if the strategy cannot continue without it."""
    if size(strategy) == 1:
        pytest.skip("it uses one worker only, so that none is left")
    if create(strategy).replicas == "parts":
        pytest.skip("each worker holds a part of the model, which is incomplete without it")


def test_class_attributes_are_valid(strategy: str) -> None:
    """The attributes for codecs, checkpoints and listings have known values."""
    subject, entry = create(strategy), STRATEGIES.find(strategy)
    for attribute in ("family", "sends", "replicas"):
        known = get_args(get_args(get_type_hints(Strategy)[attribute])[0])
        assert getattr(subject, attribute, None) in known, f"{attribute} is one of {', '.join(known)}"
    assert isinstance(subject.carries, bool)
    assert "name" in subject.default_optimizer
    assert subject.server_optimizer is None or "name" in subject.server_optimizer
    assert len(entry.summary) > 20, "the first line of its docstring describes it"
    assert 1 <= size(strategy) <= WORKERS


def test_it_yields_rounds_and_prints_nothing(strategy: str, fit: Fit, capfd: pytest.CaptureFixture[str]) -> None:
    """`rounds` is an endless generator of `Round`; the strategy prints nothing."""
    subject, seen = create(strategy), list[Round]()
    rounds = subject.rounds

    def watched(cluster: Cluster) -> Iterator[Round]:
        for each in rounds(cluster):
            assert isinstance(each, Round)
            assert isinstance(each.rounds, int)
            assert each.rounds >= 1
            assert all(isinstance(late, int) and late >= 0 for late in each.staleness)
            seen.append(each)
            yield each
        raise AssertionError("rounds ended: it must be an endless generator, the trainer decides when to stop")

    subject.rounds = watched  # type: ignore[method-assign]
    run = fit(subject)
    assert run.cost.rounds == ROUNDS <= sum(each.rounds for each in seen)
    assert all(each.done for each in seen), "a round without refs: a failure in it would not be noticed"
    assert capfd.readouterr() == ("", "")


def test_running_twice_in_virtual_time_gives_the_same_bits(strategy: str, fit: Fit) -> None:
    """The same seed gives the same weights, costs and timeline, for workers of any speeds."""
    once, again = in_virtual_time(strategy, spread=3.0), fit(strategy, engine=STRAGGLERS)
    assert np.array_equal(weights(once), weights(again))
    assert (once.cost, once.rows, once.staleness) == (again.cost, again.rows, again.staleness)
    assert np.abs(weights(once)).max() > 0.05


@pytest.mark.parametrize("interrupt_at", [3, 8])
def test_a_resumed_run_equals_an_uninterrupted_one(strategy: str, interrupt_at: int, fit: Fit, tmp_path: Path) -> None:
    """Workers, servers and `state` hold the whole state: another process resumes from a checkpoint to the same bits."""
    cadence: dict[str, Any] = {"engine": STRAGGLERS, "checkpoint_every": 2, "log_every": 1, "evaluate_every": 5}
    whole = fit(strategy, **cadence)
    with pytest.raises(InterruptedRunError):
        fit(strategy, folder=tmp_path / "cut", callbacks=[InterruptAt(interrupt_at)], **cadence)
    resumed = fit(strategy, folder=tmp_path / "cut", resume=True, **cadence)
    assert np.array_equal(weights(resumed), weights(whole))
    assert (resumed.cost, resumed.rows, resumed.staleness) == (whole.cost, whole.rows, whole.staleness)
    assert resumed.figures == whole.figures


def test_its_state_is_serializable_and_restored(strategy: str, fit: Fit) -> None:
    """`state` can be encoded in MessagePack, as in checkpoints, and `restore` restores all of it."""
    subject, other = create(strategy), create(strategy)
    size(strategy)
    fit(subject)
    packed = msgspec.msgpack.encode(subject.state())
    other.restore(msgspec.msgpack.decode(packed))
    assert msgspec.msgpack.encode(other.state()) == packed
    msgspec.msgpack.encode(subject.figures())


def test_it_counts_the_samples_that_workers_compute(strategy: str, fit: Fit) -> None:
    """`samples_per_round`, `batches_per_round` and `steps_per_round` agree with the trace; bytes are counted."""
    subject, workers = create(strategy), size(strategy)
    run = fit(strategy, engine=STRAGGLERS)
    calls = samples_by_call(run)
    expected = ROUNDS * subject.samples_per_round(workers, BATCH, SAMPLES)
    under_way = workers * max(samples for _, samples in calls)  # samples of calls in flight when the run ended
    assert expected <= run.cost.samples <= expected + under_way
    of_each = Counter[str]()
    for (worker, samples), count in calls.items():
        of_each[worker] += samples * count
    batches = max(of_each.values()) / (ROUNDS * BATCH)
    if subject.steps_per_round() > 1:
        assert batches == pytest.approx(subject.steps_per_round(), rel=1.5 / ROUNDS)
    elif len(set(of_each.values())) == 1:
        assert batches < 2, "workers compute more than one batch per round: declare it by steps_per_round"
    assert (run.cost.bytes_up > 1000) == (run.cost.bytes_down > 1000) == (workers > 1)
    if subject.sends != "nothing":
        assert run.cost.bytes_up >= run.cost.packed_up > 0
        assert run.cost.elements_up > 0


@quick_on("simulated")
def test_it_learns(strategy: str, engine: Any, fit: Fit) -> None:
    """A few epochs give an accuracy far above chance, which is 0.1."""
    run = fit(strategy, engine=engine, **epochs(strategy, 8, 8))
    assert run.metrics["accuracy"] > 0.6
    assert run.events == []


@quick_on("local", long_on=("simulated", "ray"))
def test_all_engines_give_the_same_weights(strategy: str, engine: Any, fit: Fit) -> None:
    """The result is the same on all engines; with one worker if speed matters, else with all."""
    workers = 1 if depends_on_speed(strategy) else WORKERS
    here, there = in_virtual_time(strategy, workers), fit(strategy, engine=engine, workers=workers)
    np.testing.assert_allclose(weights(there), weights(here), atol=2e-6)
    assert (there.cost.rounds, there.staleness) == (here.cost.rounds, here.staleness)


@quick_on(long_on=("simulated", "local", "ray"))
def test_a_strategy_that_depends_on_speed_runs_with_all_workers(strategy: str, engine: Any, fit: Fit) -> None:
    """If an engine's clock affects the result, the run still succeeds."""
    if not depends_on_speed(strategy):
        pytest.skip("the result does not depend on speed: other tests ran it with all workers")
    run = fit(strategy, engine=engine)
    assert run.cost.rounds == ROUNDS
    assert run.events == []
    assert np.isfinite(run.metrics["loss"])


@quick_on("simulated", "local")
def test_a_worker_that_is_killed_is_replaced(strategy: str, engine: Any, fit: Fit) -> None:
    """The loss is reported, another process replaces the worker, and the run completes all rounds."""
    victim = f"worker {size(strategy) - 1}"
    # The run pauses while workers are missing, since a new process takes long to start on some engines.
    run = fit(strategy, engine=engine, faults=[f"kill {victim} at step 3"], min_workers=size(strategy))
    events = Counter((event.event, event.actor) for event in run.events)
    assert events[("worker lost", victim)] == events[("worker respawned", victim)] == 1
    assert run.lost_workers == 1
    assert run.cost.rounds == ROUNDS
    computed = (ROUNDS - 1) * create(strategy).samples_per_round(
        size(strategy), BATCH, SAMPLES
    )  # at most one call is partial
    assert run.cost.samples >= computed, "rounds without computation were counted: a loss was not reported"
    assert np.isfinite(weights(run)).all()
    assert run.metrics["accuracy"] > 0.05


@quick_on("simulated")
def test_the_others_continue_without_a_killed_worker(strategy: str, engine: Any, fit: Fit) -> None:
    """The trainer calls `rounds` again with the remaining workers."""
    skip_unless_others_can_continue(strategy)
    victim = f"worker {size(strategy) - 1}"
    run = fit(strategy, engine=engine, faults=[f"kill {victim} at step 3"], on_worker_loss="drop")
    events = Counter((event.event, event.actor) for event in run.events)
    assert events[("worker lost", victim)] == 1
    assert run.cost.rounds == ROUNDS
    assert np.isfinite(weights(run)).all()


@quick_on("simulated")
def test_a_gradient_that_is_not_finite_is_rejected(strategy: str, engine: Any, fit: Fit) -> None:
    """If one worker's data give NaN, its gradients are reported and rejected, no others are, and the model still learns."""
    from chimera.testing.poison import digits, nan_on_poison, round_robin

    skip_unless_others_can_continue(strategy)
    workers = size(strategy)
    run = fit(
        strategy,
        engine=engine,
        model=nan_on_poison(normalised=needs_batch_norm(create(strategy))),
        data=digits({workers - 1: 3}, workers),
        partition=round_robin,
        **epochs(strategy, 6, BATCH),
    )
    assert {(event.event, event.actor) for event in run.events} == {("gradient rejected", f"worker {workers - 1}")}
    steps = [re.match(r"step (\d+): ", event.detail) for event in run.events]
    assert len({match[1] for match in steps if match}) == len(steps), "each rejection is reported once, with its step"
    assert all(np.isfinite(row["train_loss"]) for row in run.rows if "train_loss" in row)
    assert np.isfinite(weights(run)).all()
    assert run.metrics["accuracy"] > 0.4


def test_no_thread_survives_a_run(strategy: str, fit: Fit) -> None:
    """No thread of a run survives it, even if the run was interrupted."""
    before = set(threading.enumerate())
    fit(strategy)
    with pytest.raises(InterruptedRunError):
        fit(strategy, callbacks=[InterruptAt(3)])
    assert [thread.name for thread in set(threading.enumerate()) - before if thread.is_alive()] == []


@pytest.mark.long
def test_no_process_survives_a_run(strategy: str, fit: Fit) -> None:
    """No process of a run survives it."""
    psutil = pytest.importorskip("psutil")
    before = set(psutil.Process().children(recursive=True))
    fit(strategy, engine="local")
    with pytest.raises(InterruptedRunError):
        fit(strategy, engine="local", callbacks=[InterruptAt(3)])
    _, alive = psutil.wait_procs(set(psutil.Process().children(recursive=True)) - before, timeout=10)
    assert [process.name() for process in alive] == []

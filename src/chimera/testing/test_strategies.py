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
from chimera.strategies.strategy import STRATEGIES, Cluster, Round, Strategy
from chimera.testing.training import (
    BATCH,
    ROUNDS,
    SAMPLES,
    STRAGGLERS,
    WORKERS,
    CutOffAt,
    CutOffError,
    Fit,
    fit_in,
    heeds_time,
    in_virtual_time,
    made,
    needs_batch_norm,
    passes,
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
    """Open engines by name, each once for many tests: `local` runs at most 255 actors in all, and a test needs a dozen."""
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
    """Return the engine of this name; in virtual time, each run creates its own."""
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


def skip_unless_others_can_go_on(strategy: str) -> None:
    """Skip a test of a run that loses a worker, if the strategy cannot continue without it."""
    if size(strategy) == 1:
        pytest.skip("it uses one worker only, without which nobody is left")
    if made(strategy).replicas == "parts":
        pytest.skip("each worker holds a part of the model, and without it there is none")


def test_it_says_what_it_is(strategy: str) -> None:
    """The attributes for codecs, checkpoints and listings have known values."""
    subject, entry = made(strategy), STRATEGIES.find(strategy)
    for attribute in ("family", "sends", "replicas"):
        known = get_args(get_args(get_type_hints(Strategy)[attribute])[0])
        assert getattr(subject, attribute, None) in known, f"{attribute} is one of {', '.join(known)}"
    assert isinstance(subject.carries, bool)
    assert subject.sgd_learning_rate is None or subject.sgd_learning_rate > 0
    assert len(entry.summary) > 20, "the first line of its docstring says what it is"
    assert 1 <= size(strategy) <= WORKERS


def test_it_yields_rounds_and_says_nothing(strategy: str, fit: Fit, capfd: pytest.CaptureFixture[str]) -> None:
    """`rounds` is an endless generator of `Round`; the strategy prints nothing."""
    subject, seen = made(strategy), list[Round]()
    rounds = subject.rounds

    def watched(cluster: Cluster) -> Iterator[Round]:
        for each in rounds(cluster):
            assert isinstance(each, Round)
            assert isinstance(each.rounds, int)
            assert each.rounds >= 1
            assert all(isinstance(late, int) and late >= 0 for late in each.staleness)
            seen.append(each)
            yield each
        raise AssertionError("rounds ended: a strategy goes on for ever, the trainer decides when to stop")

    subject.rounds = watched  # type: ignore[method-assign]
    run = fit(subject)
    assert run.cost.rounds == ROUNDS <= sum(each.rounds for each in seen)
    assert all(each.done for each in seen), "a round without refs: nobody would notice that its work failed"
    assert capfd.readouterr() == ("", "")


def test_twice_in_virtual_time_is_the_same_to_the_bit(strategy: str, fit: Fit) -> None:
    """The same seed gives the same weights, costs and timeline, for workers of any speeds."""
    once, again = in_virtual_time(strategy, spread=3.0), fit(strategy, engine=STRAGGLERS)
    assert np.array_equal(weights(once), weights(again))
    assert (once.cost, once.rows, once.staleness) == (again.cost, again.rows, again.staleness)
    assert np.abs(weights(once)).max() > 0.05


@pytest.mark.parametrize("cut_at", [3, 8])
def test_resumed_it_ends_as_if_it_had_never_been_cut_off(strategy: str, cut_at: int, fit: Fit, tmp_path: Path) -> None:
    """Workers, servers and `state` hold all that it needs: another process resumes from a checkpoint to the same bits."""
    cadence: dict[str, Any] = {"engine": STRAGGLERS, "checkpoint_every": 2, "log_every": 1, "evaluate_every": 5}
    whole = fit(strategy, **cadence)
    with pytest.raises(CutOffError):
        fit(strategy, folder=tmp_path / "cut", callbacks=[CutOffAt(cut_at)], **cadence)
    resumed = fit(strategy, folder=tmp_path / "cut", resume=True, **cadence)
    assert np.array_equal(weights(resumed), weights(whole))
    assert (resumed.cost, resumed.rows, resumed.staleness) == (whole.cost, whole.rows, whole.staleness)
    assert resumed.figures == whole.figures


def test_its_state_is_plain_values_and_comes_back(strategy: str, fit: Fit) -> None:
    """`state` survives MessagePack, as in checkpoints, and `restore` restores all of it."""
    subject, other = made(strategy), made(strategy)
    size(strategy)
    fit(subject)
    packed = msgspec.msgpack.encode(subject.state())
    other.restore(msgspec.msgpack.decode(packed))
    assert msgspec.msgpack.encode(other.state()) == packed
    msgspec.msgpack.encode(subject.figures())


def test_it_counts_what_its_workers_compute(strategy: str, fit: Fit) -> None:
    """`samples_per_round`, `batches_per_round` and `steps_per_round` agree with the trace; bytes are counted."""
    subject, workers = made(strategy), size(strategy)
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
        assert batches < 2, "all workers go on by more than one batch a round: say so by steps_per_round"
    assert (run.cost.bytes_up > 1000) == (run.cost.bytes_down > 1000) == (workers > 1)
    if subject.sends != "nothing":
        assert run.cost.bytes_up >= run.cost.packed_up > 0
        assert run.cost.elements_up > 0


@quick_on("simulated")
def test_it_learns(strategy: str, engine: Any, fit: Fit) -> None:
    """A few passes over the data make it far better than chance, which is 0.1."""
    run = fit(strategy, engine=engine, **passes(strategy, 8, 8))
    assert run.metrics["accuracy"] > 0.6
    assert run.events == []


@quick_on("local", long_on=("simulated", "ray"))
def test_every_engine_comes_to_the_same_weights(strategy: str, engine: Any, fit: Fit) -> None:
    """The result is the same on all engines; with one worker if speed matters, else with all."""
    workers = 1 if heeds_time(strategy) else WORKERS
    here, there = in_virtual_time(strategy, workers), fit(strategy, engine=engine, workers=workers)
    np.testing.assert_allclose(weights(there), weights(here), atol=2e-6)
    assert (there.cost.rounds, there.staleness) == (here.cost.rounds, here.staleness)


@quick_on(long_on=("simulated", "local", "ray"))
def test_where_speed_matters_all_workers_take_part(strategy: str, engine: Any, fit: Fit) -> None:
    """If an engine's clock affects the result, the run still succeeds."""
    if not heeds_time(strategy):
        pytest.skip("nobody's speed matters: all workers have run already")
    run = fit(strategy, engine=engine)
    assert run.cost.rounds == ROUNDS
    assert run.events == []
    assert np.isfinite(run.metrics["loss"])


@quick_on("simulated", "local")
def test_a_worker_that_is_killed_is_replaced(strategy: str, engine: Any, fit: Fit) -> None:
    """The loss is reported, another process replaces the worker, and the run completes all rounds."""
    victim = f"worker {size(strategy) - 1}"
    # With fewer workers the run pauses: it waits for the process, which takes long to start on some engines.
    run = fit(strategy, engine=engine, faults=[f"kill {victim} at step 3"], min_workers=size(strategy))
    told = Counter((event.event, event.actor) for event in run.events)
    assert told[("worker lost", victim)] == told[("worker respawned", victim)] == 1
    assert run.lost_workers == 1
    assert run.cost.rounds == ROUNDS
    computed = (ROUNDS - 1) * made(strategy).samples_per_round(
        size(strategy), BATCH, SAMPLES
    )  # at most one call is partial
    assert run.cost.samples >= computed, "rounds were counted in which nobody computed: a loss was not told"
    assert np.isfinite(weights(run)).all()
    assert run.metrics["accuracy"] > 0.05


@quick_on("simulated")
def test_without_a_worker_that_is_killed_the_others_go_on(strategy: str, engine: Any, fit: Fit) -> None:
    """The trainer calls `rounds` again with the remaining workers."""
    skip_unless_others_can_go_on(strategy)
    victim = f"worker {size(strategy) - 1}"
    run = fit(strategy, engine=engine, faults=[f"kill {victim} at step 3"], on_worker_loss="drop")
    told = Counter((event.event, event.actor) for event in run.events)
    assert told[("worker lost", victim)] == 1
    assert run.cost.rounds == ROUNDS
    assert np.isfinite(weights(run)).all()


@quick_on("simulated")
def test_a_gradient_that_is_not_finite_is_left_out(strategy: str, engine: Any, fit: Fit) -> None:
    """Poison in one worker's data: that worker is named each time, no other worker is, and the model still learns."""
    from chimera.testing.poison import digits, fragile, in_turn

    skip_unless_others_can_go_on(strategy)
    workers = size(strategy)
    run = fit(
        strategy,
        engine=engine,
        model=fragile(normalised=needs_batch_norm(made(strategy))),
        data=digits({workers - 1: 3}, workers),
        partition=in_turn,
        **passes(strategy, 6, BATCH),
    )
    assert {(event.event, event.actor) for event in run.events} == {("gradient rejected", f"worker {workers - 1}")}
    told = [re.match(r"step (\d+): ", event.detail) for event in run.events]
    assert len({match[1] for match in told if match}) == len(told), "each is told once, with the step"
    assert all(np.isfinite(row["train_loss"]) for row in run.rows if "train_loss" in row)
    assert np.isfinite(weights(run)).all()
    assert run.metrics["accuracy"] > 0.4


def test_nothing_goes_on_when_a_run_has_ended(strategy: str, fit: Fit) -> None:
    """No thread of a run survives it, even if the run was interrupted."""
    before = set(threading.enumerate())
    fit(strategy)
    with pytest.raises(CutOffError):
        fit(strategy, callbacks=[CutOffAt(3)])
    assert [thread.name for thread in set(threading.enumerate()) - before if thread.is_alive()] == []


@pytest.mark.long
def test_no_process_is_left_when_a_run_has_ended(strategy: str, fit: Fit) -> None:
    """No process of a run survives it."""
    psutil = pytest.importorskip("psutil")
    before = set(psutil.Process().children(recursive=True))
    fit(strategy, engine="local")
    with pytest.raises(CutOffError):
        fit(strategy, engine="local", callbacks=[CutOffAt(3)])
    _, alive = psutil.wait_procs(set(psutil.Process().children(recursive=True)) - before, timeout=10)
    assert [process.name() for process in alive] == []

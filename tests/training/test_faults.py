"""Tests of faults during training: in virtual time, and with real signals to real processes."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

import chimera
from chimera.core.engine import Disturbance
from chimera.core.errors import ConfigurationError, RunError
from chimera.engines.simulated import Simulated
from chimera.training.fault_tolerance.injection import Fault, as_sentences
from training.conftest import Fit

WORKERS = 4
ENGINES = ["simulated", "local"]


def actors() -> list[psutil.Process]:
    """Return the processes of the actors, in the order in which they were spawned: the children of the fork server."""
    (server,) = (p for p in psutil.Process().children() if "chimera.engines.local.forkserver" in " ".join(p.cmdline()))
    return sorted(server.children(), key=lambda process: process.pid)


class KillAtRound(chimera.Callback):
    """Sends SIGKILL to one actor when a round is reached."""

    def __init__(self, actor: int, round_: int) -> None:
        self.actor, self.round = actor, round_

    def on_progress(self, progress: chimera.Progress) -> None:
        if progress.rounds == self.round:
            os.kill(actors()[self.actor].pid, signal.SIGKILL)


SYNCHRONOUS: list[Any] = ["parameter-server", {"name": "parameter-server", "shards": 2}, "all-reduce"]
STRATEGIES: list[Any] = [
    *SYNCHRONOUS,
    {"name": "parameter-server", "quorum": 0.75},
    {"name": "async-parameter-server", "shards": 2},
    {"name": "stale-synchronous", "max_staleness": 1},
    "delay-compensated",
    "double-buffering",
    {"name": "fed-avg", "local_steps": 2},
    {"name": "fed-buff", "local_steps": 2},
]


def events_of(run: chimera.Run) -> list[tuple[str, str]]:
    return [(event.event, event.actor) for event in run.events]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("strategy", "policy"),
    [*((strategy, "respawn") for strategy in STRATEGIES), ("parameter-server", "drop"), ("all-reduce", "drop")],
)
@pytest.mark.takes("processes are killed and replaced")
def test_a_run_finishes_after_one_of_four_workers_is_killed(fit: Fit, strategy: Any, policy: str) -> None:
    run = fit(
        engine="local",
        strategy=strategy,
        on_worker_loss=policy,
        workers=WORKERS,
        epochs=6,
        rounds=None,
        log_every=5,
        callbacks=[KillAtRound(actor=2, round_=25)],
    )
    assert run.summary()["lost_workers"] == 1
    events = ["worker lost", "worker respawned"] if policy == "respawn" else ["worker lost"]
    assert events_of(run) == [(event, "worker 2") for event in events]
    assert run.stopped_by == "epochs"
    assert run.metrics["accuracy"] > 0.85
    assert "worker 2" in (run.run_dir / "report.html").read_text()
    assert psutil.Process().children() == []


@pytest.mark.sampled(2)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("strategy", SYNCHRONOUS, ids=str)
def test_a_synchronous_run_gives_the_same_result_whichever_worker_fails(fit: Fit, engine: str, strategy: Any) -> None:
    servers = [] if strategy == "all-reduce" else ["kill server 0 at step 15"]
    whole = fit("whole", strategy=strategy)
    run = fit(
        engine=engine,
        strategy=strategy,
        snapshot_every=4,
        worker_timeout_s=3.0 if engine == "simulated" else 8.0,  # a busy machine must not add losses
        max_restarts=4,
        faults=["kill worker 1 at step 7", *servers, (18, "hang worker 0"), (20, "cut off worker 2 for 0.1 s")],
    )
    assert np.array_equal(run.trained.parameters(), whole.trained.parameters())
    assert run.cost.rounds == 30
    back = [("server lost", "server 0"), ("server respawned", "server 0"), ("went back", "")]
    struck = [event for event in events_of(run) if event[0] != "fault"]
    assert struck == [
        ("worker lost", "worker 1"),
        ("worker respawned", "worker 1"),
        *(back if servers else []),
        ("worker lost", "worker 0"),
        ("worker respawned", "worker 0"),
    ]
    # A death cuts one round short, and the server's takes three more with it: back from round 15 to 12.
    assert run.cost.lost_rounds == (6 if servers else 2)
    assert run.cost.goodput == 30 / (30 + run.cost.lost_rounds)
    assert psutil.Process().children() == []


@pytest.mark.sampled(2)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("strategy", SYNCHRONOUS, ids=str)
def test_a_repeated_round_uses_a_budget_of_epochs_once(fit: Fit, engine: str, strategy: Any) -> None:
    whole = fit("whole", strategy=strategy, rounds=None, epochs=0.5)
    run = fit(engine=engine, strategy=strategy, rounds=None, epochs=0.5, faults=["kill worker 1 at step 7"])
    assert (run.cost.rounds, run.cost.samples) == (whole.cost.rounds, whole.cost.samples)
    assert run.cost.lost_rounds == 1
    assert np.array_equal(run.trained.parameters(), whole.trained.parameters())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_a_killed_server_is_restored_from_its_snapshot(fit: Fit, engine: str, strategy: Any) -> None:
    if strategy == "all-reduce":
        return
    faults = ["kill server 0 at step 57"]
    run = fit(engine=engine, strategy=strategy, rounds=90, snapshot_every=25, evaluate_every=1000, faults=faults)
    assert events_of(run)[1:] == [("server lost", "server 0"), ("server respawned", "server 0"), ("went back", "")]
    assert run.events[-1].detail == "the snapshot of round 50; 7 rounds lost"
    assert run.cost.lost_rounds == 8
    assert run.metrics["accuracy"] > 0.6


@pytest.mark.parametrize("engine", ENGINES)
def test_without_an_interval_a_killed_server_costs_no_bits(fit: Fit, engine: str) -> None:
    whole = fit("whole", engine=engine, rounds=160, evaluate_every=1000)
    run = fit(engine=engine, rounds=160, evaluate_every=1000, faults=["kill server 0 at step 157"])
    assert np.array_equal(run.trained.parameters(), whole.trained.parameters())
    if engine == "simulated":  # where time does not depend on the machine
        assert run.events[-1].detail == "the snapshot of round 100; 57 rounds lost"


def test_a_repeated_round_has_a_row_again(fit: Fit) -> None:
    run = fit(rounds=20, snapshot_every=4, evaluate_every=20, log_every=5, faults=["kill server 0 at step 6"])
    assert run.events[-1].detail.startswith("the snapshot of round 4")
    assert [row["round"] for row in run.rows] == [5, 5, 10, 15, 20]


def test_a_server_lost_before_the_first_snapshot_restarts_the_run(fit: Fit) -> None:
    whole = fit("whole")
    run = fit(faults=["kill server 0 at step 3", "kill worker 1 at step 3"])
    assert run.events[-1].detail == "the parameters of round 0; 3 rounds lost"
    assert np.array_equal(run.trained.parameters(), whole.trained.parameters())


@pytest.mark.long
@pytest.mark.parametrize("engine", ENGINES)
def test_too_many_server_losses_raise_an_error_with_the_remedy(fit: Fit, engine: str) -> None:
    faults = [f"kill server 0 at step {step}" for step in (12, 15, 25)]
    options = {"engine": engine, "checkpoint_every": 10, "max_restarts": 2}
    with pytest.raises(RunError, match=r"server 0 died, and no restarts are left: resume the run") as caught:
        fit(faults=faults, **options)
    assert "\n" not in str(caught.value)
    run = fit(resume=True, **options)
    assert run.cost.rounds == 30
    assert np.array_equal(run.trained.parameters(), fit("whole").trained.parameters())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("strategy", ["parameter-server", "all-reduce", "async-parameter-server"])
@pytest.mark.parametrize("partition", ["iid", "dirichlet"])
def test_data_of_a_lost_worker_are_redistributed(fit: Fit, engine: str, strategy: str, partition: str) -> None:
    run = fit(
        engine=engine,
        strategy=strategy,
        partition=partition,
        on_worker_loss="redistribute",
        rounds=120,
        faults=["kill worker 1 at step 10", "kill worker 0 at step 40"],
    )
    assert events_of(run)[1::2] == [("worker lost", "worker 1"), ("worker lost", "worker 0")]
    assert "its data goes to the others" in run.events[1].detail
    assert run.metrics["accuracy"] > 0.8


def test_a_resumed_run_redistributes_data_over_all_workers(fit: Fit) -> None:
    options = {"on_worker_loss": "redistribute", "checkpoint_every": 10}
    fit(faults=["kill worker 1 at step 15"], **options)
    run = fit(resume=True, rounds=60, **options)
    assert run.cost.rounds == 60
    assert run.cost.samples == pytest.approx((15 * 3 + 15 * 2 + 30 * 3) * 16, abs=3 * 16)  # what a death wasted


class AddWorkers(chimera.Callback):
    """Adds workers when a round is reached."""

    def __init__(self, round_: int, count: int) -> None:
        self.trainer: chimera.Trainer | None = None
        self.round, self.count = round_, count

    def on_progress(self, progress: chimera.Progress) -> None:
        if progress.rounds == self.round and self.trainer is not None:
            for _ in range(self.count):
                self.trainer.add_worker()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_workers_join_a_run_under_way(tmp_path: Any, engine: str, strategy: Any) -> None:
    adder = AddWorkers(10, 2)
    adder.trainer = chimera.Trainer(
        {"name": "mlp", "hidden": [16]},
        "digits",
        strategy=strategy,
        engine=engine,
        batch_size=16,
        optimizer={"name": "adam", "lr": 5e-3},
        rounds=80,
        log_every=5,
        callbacks=[adder],
        out=tmp_path / "run",
    )
    run = adder.trainer.fit()
    assert events_of(run) == [("worker joined", "worker 2"), ("worker joined", "worker 3")]
    assert run.events[0].round == 10
    if strategy in SYNCHRONOUS:
        assert run.cost.samples == (10 * 2 + 70 * 4) * 16
    trace = (run.run_dir / "trace.jsonl").read_text()
    assert trace.count('"worker 3"') > 5
    assert run.metrics["accuracy"] > 0.5
    with pytest.raises(RunError, match="no run is in progress"):
        adder.trainer.add_worker()


def test_no_worker_joins_beyond_max_workers(tmp_path: Any) -> None:
    adder = AddWorkers(10, 2)
    adder.trainer = chimera.Trainer(
        "logistic-regression", "digits", engine="simulated", max_workers=3, rounds=20, callbacks=[adder], out=tmp_path
    )
    with pytest.raises(RunError, match="max_workers is 3: this many workers exist or are requested"):
        adder.trainer.fit()


class Losing(Simulated):
    """An engine that loses each worker at its start."""

    def spawn(self, *args: Any, name: str | None = None, **given: Any) -> Any:
        handle = super().spawn(*args, name=name, **given)
        if name is not None and name.startswith("worker"):
            self.kill(handle)
        return handle


def test_no_worker_joins_after_a_run_that_failed_at_its_first_calls(tmp_path: Any) -> None:
    with Losing() as engine:
        trainer = chimera.Trainer("logistic-regression", "digits", engine=engine, on_worker_loss="stop", out=tmp_path)
        with pytest.raises(RunError, match="on_worker_loss is 'stop'"):
            trainer.fit()
        with pytest.raises(RunError, match="no run is in progress that a worker could join"):
            trainer.add_worker()


def test_workers_join_as_resources_allow(fit: Fit) -> None:
    run = fit(workers=2, max_workers=4)
    assert events_of(run) == [("worker joined", "worker 2"), ("worker joined", "worker 3")]


@pytest.mark.long
@pytest.mark.parametrize("engine", ENGINES)
def test_a_fault_is_injected_at_its_time(fit: Fit, engine: str) -> None:
    faults = [("0.3 s", "kill worker 1"), (0.6, "slow server 0 by 2 for 0.1 s"), (10**6, "kill worker 0")]
    network = {"name": "simulated", "compute": {"seconds_per_call": 0.02}}
    run = fit(engine=network if engine == "simulated" else engine, rounds=10**6, max_seconds=5.0, faults=faults)
    assert sorted(events_of(run)) == [
        ("fault", "server 0"),
        ("fault", "worker 1"),
        ("fault missed", "worker 0"),
        ("worker lost", "worker 1"),
        ("worker respawned", "worker 1"),
    ]
    struck = [event.seconds for event in run.events if event.event == "fault"]
    if engine == "simulated":
        assert [round(seconds, 6) for seconds in struck] == [0.3, 0.6]
    else:
        assert 0.3 <= struck[0] <= struck[1]
        assert struck[1] >= 0.6


def test_a_fault_at_any_worker_is_reproducible(fit: Fit) -> None:
    faults = [f"kill any worker at step {step}" for step in range(2, 20, 2)]
    runs = [fit(name, faults=faults, max_restarts=9) for name in ("once", "again")]
    struck = [[actor for event, actor in events_of(run) if event == "fault"] for run in runs]
    assert struck[0] == struck[1]
    assert set(struck[0]) == {"worker 0", "worker 1", "worker 2"}


def test_a_fault_of_a_missing_worker_is_reported(fit: Fit) -> None:
    run = fit(strategy="all-reduce", faults=["kill server 3 at step 5"])
    assert events_of(run) == [("fault missed", "server 3")]


def test_a_fault_after_the_end_of_the_run_is_reported(fit: Fit) -> None:
    run = fit(rounds=10, faults=["kill worker 1 at step 10", "kill worker 0 at 1000 s"])
    assert events_of(run) == [("fault missed", "worker 1"), ("fault missed", "worker 0")]
    assert all("the run ended before" in event.detail for event in run.events)


def test_faults_before_a_checkpoint_are_not_repeated(fit: Fit) -> None:
    faults = ["kill worker 1 at step 5", "kill worker 2 at step 25"]
    fit(rounds=10, faults=faults)
    run = fit(resume=True, faults=faults)
    assert events_of(run).count(("fault", "worker 1")) == events_of(run).count(("fault", "worker 2")) == 1


WHATS = st.one_of(
    st.just(("kill", None, None)),
    st.tuples(st.sampled_from(["hang", "cut off"]), st.none(), st.none() | st.integers(1, 99)),
    st.tuples(st.just("slow"), st.none() | st.integers(1, 9), st.none() | st.integers(1, 99)),
)


@given(WHATS, st.sampled_from(["worker", "server"]), st.integers(0, 999), st.integers(0, 10**6) | st.floats(0, 10**6))
def test_a_fault_sentence_equals_the_pair(what: tuple[Any, ...], kind: str, number: int, when: float) -> None:
    verb, factor, for_s = what
    text = f"{verb} {kind} {number}{f' by {factor}' if factor else ''}{f' for {for_s} s' if for_s else ''}"
    when = when if isinstance(when, int) else round(when, 3)
    moment = f"step {when}" if isinstance(when, int) else f"{when:f} s"
    fault, same = Fault.read(f"{text} at {moment}"), Fault.read((moment, text))
    assert fault == same
    assert Fault.read(as_sentences([(when, text)], workers=1000)[0]).actor == f"{kind} {number}"
    assert (fault.step, fault.at_s) == ((when, float("inf")) if isinstance(when, int) else (None, when))
    expected = None if verb == "kill" else Disturbance(verb, float(factor or 4), float(for_s or "inf"))
    assert fault.disturbance == expected


@pytest.mark.parametrize(
    "given",
    ["", "kill", "kill worker at step 3", "kill worker 2", "kill worker 2 at round 3", "maim worker 2 at step 3",
     "kill worker 2 for 3 s at step 3", "hang worker 2 by 3 at step 3", ("soon", "kill worker 1"), (True, "kill worker 1"),
     ("step 1",), 17, "kill worker -1 at step 3", "kill any at step 3",
     "kill any worker 2 at step 3", "kill worker 3 at step 3", "slow worker 1 by 0.5 at step 3"],
)  # fmt: skip
def test_invalid_faults_are_rejected_before_the_run(fit: Fit, given: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        fit(faults=[given])
    assert "\n" not in str(caught.value)


class ServerKiller(chimera.Callback):
    """Sends SIGKILL to the fork server when a round is reached for the first time."""

    def __init__(self, round_: int) -> None:
        self.round, self.struck = round_, False

    def on_progress(self, progress: chimera.Progress) -> None:
        if progress.rounds == self.round and not self.struck:
            self.struck = True
            (actor, *_) = actors()
            os.kill(actor.ppid(), signal.SIGKILL)


@pytest.mark.long
def test_a_run_survives_the_loss_of_the_fork_server(fit: Fit) -> None:
    whole = fit("whole")
    run = fit(
        engine="local", snapshot_every=4, max_restarts=8, min_workers=3, log_every=5, callbacks=[ServerKiller(15)]
    )
    assert np.array_equal(run.trained.parameters(), whole.trained.parameters())
    assert {event for event, _ in events_of(run)} >= {
        "worker lost",
        "worker respawned",
        "server respawned",
        "went back",
    }
    assert psutil.Process().children() == []


@pytest.mark.long
def test_default_settings_tolerate_the_loss_of_the_fork_server(fit: Fit) -> None:
    run = fit(engine="local", log_every=5, callbacks=[ServerKiller(15)])
    # Each actor costs a restart, of which there are three by default: the last worker is dropped.
    assert events_of(run).count(("worker dropped", "worker 2")) == 1
    assert psutil.Process().children() == []


@pytest.mark.long
@pytest.mark.parametrize(("policy", "why"), [("drop", "0 workers left, fewer than min_workers = 1"), ("stop", "died")])
def test_a_run_without_replacement_ends_with_the_fork_server(fit: Fit, policy: str, why: str) -> None:
    with pytest.raises(RunError, match=rf"worker 0, worker 1, worker 2, server 0.*{why}"):
        fit(engine="local", log_every=5, on_worker_loss=policy, callbacks=[ServerKiller(15)])
    assert psutil.Process().children() == []


@pytest.mark.long
def test_a_run_survives_the_loss_of_the_fork_server_at_its_start(fit: Fit, monkeypatch: pytest.MonkeyPatch) -> None:
    from chimera.engines.local import Local

    spawn, killed = Local.spawn, []

    def spawn_and_kill(engine: Local, *args: object, **given: object) -> object:
        handle = spawn(engine, *args, **given)  # type: ignore[arg-type]
        if not killed:
            killed.append(engine._servers.pid)
            os.kill(killed[0], signal.SIGKILL)
        return handle

    monkeypatch.setattr(Local, "spawn", spawn_and_kill)
    whole = fit("whole")
    run = fit(engine="local", max_restarts=8, min_workers=3)
    assert killed
    assert np.array_equal(run.trained.parameters(), whole.trained.parameters())


class KillInEvaluation(chimera.Callback):
    """Sends SIGKILL to a worker during the first evaluation."""

    calls = 0

    def on_model(self, model: Any, last: bool) -> None:
        self.calls += 1
        if self.calls == 1:
            victim = actors()[1]
            victim.kill()
            victim.wait(10)


@pytest.mark.long
def test_a_round_whose_evaluation_a_loss_interrupted_is_still_evaluated_and_written(fit: Fit) -> None:
    run = fit(
        engine="local",
        workers=3,
        strategy="parameter-server",
        rounds=10,
        evaluate_every=5,
        checkpoint_every=5,
        callbacks=[KillInEvaluation()],
    )
    assert [event.event for event in run.events][:1] == ["worker lost"]
    assert [row["round"] for row in run.rows if "accuracy" in row] == [5, 10]
    assert (run.run_dir / "checkpoints" / "round-000000005.safetensors").exists()

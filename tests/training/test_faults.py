"""Real deaths of real processes in the middle of training."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

import chimera
from chimera.core.errors import RunError
from training.conftest import Fit

WORKERS = 4


def actors() -> list[psutil.Process]:
    """Return the processes of the actors, in the order in which they were spawned: the children of the fork server."""
    (server,) = (p for p in psutil.Process().children() if "chimera.engines.local.forkserver" in " ".join(p.cmdline()))
    return sorted(server.children(), key=lambda process: process.pid)


class Killer(chimera.Callback):
    """Sends SIGKILL to one actor when a round is reached."""

    def __init__(self, actor: int, round_: int) -> None:
        self.actor, self.round = actor, round_

    def on_progress(self, progress: chimera.Progress) -> None:
        if progress.rounds == self.round:
            os.kill(actors()[self.actor].pid, signal.SIGKILL)


STRATEGIES = [
    "parameter-server",
    "all-reduce",
    {"name": "parameter-server", "quorum": 0.75},
    {"name": "async-parameter-server", "shards": 2},
    {"name": "stale-synchronous", "max_staleness": 1},
    "delay-compensated",
    "double-buffering",
    {"name": "fed-buff", "local_steps": 2},
]


@pytest.mark.parametrize(
    ("strategy", "policy"),
    [*((strategy, "respawn") for strategy in STRATEGIES), ("parameter-server", "drop"), ("all-reduce", "drop")],
)
def test_one_of_four_workers_is_killed_and_the_run_finishes(fit: Fit, strategy: str, policy: str) -> None:
    run = fit(
        engine="local",
        strategy=strategy,
        on_worker_loss=policy,
        workers=WORKERS,
        epochs=6,
        rounds=None,
        log_every=5,
        callbacks=[Killer(actor=2, round_=25)],
    )
    assert run.summary()["lost_workers"] == 1
    told = ["worker lost", "worker respawned"] if policy == "respawn" else ["worker lost"]
    assert [(event.event, event.actor) for event in run.events] == [(event, "worker 2") for event in told]
    assert run.stopped_by == "epochs"
    assert run.metrics["accuracy"] > 0.85
    assert "worker 2" in (run.run_dir / "report.html").read_text()
    assert psutil.Process().children() == []


def test_a_killed_server_is_one_line_that_says_how_to_go_on(fit: Fit) -> None:
    with pytest.raises(RunError, match=r"server 0 died .*resume the run from its last checkpoint") as caught:
        fit(
            engine="local",
            workers=2,
            rounds=200,
            log_every=5,
            checkpoint_every=10,
            callbacks=[Killer(actor=2, round_=25)],
        )
    assert "\n" not in str(caught.value)
    run = fit(engine="local", workers=2, rounds=200, resume=True)
    assert run.cost.rounds == 200
    assert psutil.Process().children() == []

"""Chaos: up to three workers die at once, coordinators die and hang all the time, and each query has its one right result."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from chimera.inference.cluster_folder import ClusterFolder
from chimera.inference.journal.journal import Journal
from chimera.inference.journal.raft.journal import RaftJournal
from chimera.inference.journal.sqlite import SqliteJournal
from chimera.inference.membership import Members
from inference.journal_kit import committed_once
from inference.running import RunningCluster, cluster, until
from inference.test_voting_cluster import free_addresses
from inference.users import patiently
from inference_kit import tiny_bert

WORKERS = 6
QUERIES = 2500
SECONDS = (0.01, 0.02, 0.04)  # a query, of three jobs beside that of transformers
COORDINATOR_S, WORKERS_S = 15.0, 3.0
MIN_KILLS = 3  # of the coordinator
STRIKES, STRIKES_S = 32, 90.0
HANG_S = 3.0
PATIENCE_S = 600.0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("voters", [False, True], ids=["sqlite", "voters"])
def test_ten_thousand_queries_survive_three_deaths_at_once_and_those_of_coordinators(
    voters: bool, seed: int, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    bert = {
        "kind": "transformers",
        "task": "text-classification",
        "model": str(tiny_bert(tmp_path / "bert", classifier=True)),
    }
    texts = [f"the {'cat' if number % 2 else 'dog'} sat{' on' * (number % 9)} ." for number in range(QUERIES)]
    with chaotic(tmp_path, voters=voters) as (running, journal):
        jobs = [running.client.submit(running.model(seconds=seconds), list(range(QUERIES))) for seconds in SECONDS]
        classified = running.client.submit(bert, texts, max_workers=2)
        kills, killed_s = 0, [time.monotonic()] * 2
        while kills < MIN_KILLS or not all(ended(running, job) for job in [*jobs, classified]):
            now_s = time.monotonic()
            if now_s > killed_s[0] + COORDINATOR_S:
                kills += strike(running, "coordinator", signal.SIGKILL, chance)
                killed_s[0] = now_s
            if now_s > killed_s[1] + WORKERS_S and settled_workers(running):
                for _ in range(chance.randint(1, 3)):
                    strike(running, "worker", signal.SIGKILL, chance)
                killed_s[1] = now_s
            threading.Event().wait(0.1)
        answered(running, jobs, QUERIES)
        scores = patiently(lambda: list(running.client.results(classified)))
        committed_once(journal.records())
    sys.stderr.write(f"{kills} kills of the coordinator\n")
    assert [row["query"] for row in scores] == texts
    same_as_transformers([row["result"] for row in scores], texts, bert["model"])


@pytest.mark.slow
def test_a_coordinator_that_dies_or_hangs_all_the_time_loses_none_of_24_000_queries(tmp_path: Path) -> None:
    chance, count = random.Random(4), 6000
    with chaotic(tmp_path, voters=False) as (running, journal):
        jobs = [running.client.submit(running.model(seconds=0.005 * n), list(range(count))) for n in (1, 2, 4, 6)]
        began_s, timers = time.monotonic(), list[threading.Timer]()
        for number in range(STRIKES):
            threading.Event().wait(max(0.0, began_s + number * STRIKES_S / STRIKES - time.monotonic()))
            until(
                lambda: strike(running, "coordinator", chance.choice([signal.SIGKILL, signal.SIGSTOP]), chance, timers)
            )
        for timer in timers:
            timer.join()
        sys.stderr.write(f"{STRIKES} strikes in {time.monotonic() - began_s:.0f} s\n")
        answered(running, jobs, count)
        committed_once(journal.records())


@contextmanager
def chaotic(folder: Path, *, voters: bool) -> Iterator[tuple[RunningCluster, Journal]]:
    """Run a cluster, and open its journal."""
    addresses = free_addresses() if voters else []
    options = ["--voters", ",".join(addresses)] if voters else []
    with cluster(folder, workers=WORKERS, standbys=None if voters else 2, options=options) as running:
        place = ClusterFolder(running.folder)
        journal: Journal = (
            RaftJournal(addresses, None, place.token(), folder / "follower") if voters else SqliteJournal(place.journal)
        )
        with closing(journal):
            yield running, journal


def strike(
    running: RunningCluster,
    role: str,
    number: signal.Signals,
    chance: random.Random,
    timers: list[threading.Timer] | None = None,
) -> bool:
    """Signal a process with this role, of coordinators the leader; return whether there is one.

    Parameters
    ----------
    timers : gets that after which a stopped process continues.
    """
    members = [one for one in Members(ClusterFolder(running.folder).members).members() if one.role == role]
    if not members:
        return False
    latest = max(one.epoch for one in members)
    pid = chance.choice([one.pid for one in members if role == "worker" or one.epoch == latest])
    if not signalled(pid, number):
        return False
    if number == signal.SIGSTOP and timers is not None:
        timers.append(threading.Timer(HANG_S, signalled, (pid, signal.SIGCONT)))
        timers[-1].start()
    return True


def signalled(pid: int, number: signal.Signals) -> bool:
    """Send a signal; return whether the process is there."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


def settled_workers(running: RunningCluster) -> bool:
    """Return whether all workers can compute: on a slow machine, a rhythm alone would leave none that has loaded its model."""
    states = [row["state"] for row in patiently(lambda: running.client.rows("workers"))]
    return len(states) == WORKERS and not {"joining", "loading", "lost"} & set(states)


def ended(running: RunningCluster, job: str) -> bool:
    """Return whether a job has ended."""
    return patiently(lambda: running.client.job(job))["state"] in ("done", "failed", "cancelled")


def answered(running: RunningCluster, jobs: list[str], count: int) -> None:
    """Wait for jobs, and hold that each of their queries has its one right result."""
    for job in jobs:
        until(lambda job=job: ended(running, job), PATIENCE_S)
        row = patiently(lambda job=job: running.client.job(job))
        assert (row["state"], row["errors"]) == ("done", 0), row
        assert patiently(lambda job=job: running.answers(job)) == [2 * number for number in range(count)]


def same_as_transformers(found: list[Any], texts: list[str], model: str) -> None:
    """Hold that classes and scores are those of plain transformers."""
    from transformers import pipeline

    plain = pipeline("text-classification", model=model, device="cpu")
    expected = {text: plain(text)[0] for text in set(texts)}
    for text, one in zip(texts, found, strict=True):
        (own,) = one if isinstance(one, list) else [one]
        assert own["label"] == expected[text]["label"]
        assert own["score"] == pytest.approx(expected[text]["score"], abs=1e-5)

"""Users of a cluster for soaks: each submits jobs or single queries without a pause, and checks every result."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from chimera.core.errors import ChimeraError, ConflictError, NoSpaceError, TimeLimitError, UnavailableError
from inference.running import RunningCluster

T = TypeVar("T")

SERVED = "single"
SIZES = (1, 7, 60, 300)
SECONDS = (0.001, 0.004, 0.015)
PATIENCE_S = 300.0
_TEXT = "text " * 1000


class Users:
    """Users who come and go until `end`: some submit jobs, one sends single queries to a served model.

    Attributes
    ----------
    counts : number of jobs by their end, of queries, and of answers to single queries.
    gap_s : most seconds without an answer to a single query.
    """

    def __init__(self, running: RunningCluster, seed: int, number: int = 3) -> None:
        self._running = running
        self.counts: Counter[str] = Counter()
        self.gap_s = 0.0
        self._ended = threading.Event()
        self._failures: list[BaseException] = []
        running.client.serve(SERVED, running.model(seconds=0.001), weight=2.0)
        users = [lambda n=n: self._submits(n, random.Random(seed + n)) for n in range(number)]
        self._threads = [threading.Thread(target=self._safely, args=(user,)) for user in (*users, self._asks)]
        for thread in self._threads:
            thread.start()

    def check(self) -> None:
        """Raise the error of a user, if there is one."""
        for failure in self._failures:
            raise failure

    def end(self) -> None:
        """Wait until the jobs of all users have ended; raise the error of a user, if there is one."""
        self._ended.set()
        for thread in self._threads:
            thread.join()
        self.check()

    def _safely(self, user: Callable[[], None]) -> None:
        try:
            user()
        except BaseException as failure:  # the test raises it
            self._failures.append(failure)

    def _submits(self, user: int, chance: random.Random) -> None:
        number = 0
        while not self._ended.is_set():
            self._job(f"user-{user}-job-{number}", chance)
            number += 1

    def _job(self, name: str, chance: random.Random) -> None:
        """Submit a job of some kind, and check its results."""
        client = self._running.client
        size, seconds = chance.choice(SIZES), chance.choice(SECONDS)
        queries: list[Any] = [f"{name} {number} {_TEXT}" for number in range(size)]
        if kind_is_numbers := chance.random() < 0.7:
            queries = list(range(size))
        if broken := kind_is_numbers and size > 1 and chance.random() < 0.2:
            queries[chance.randrange(size)] = "broken"
        lethal = "lethal" if size > 1 and chance.random() < 0.05 else None
        if lethal:
            queries[chance.randrange(size)] = lethal
        options = {
            "weight": chance.choice([0.5, 1.0, 3.0]),
            "batch_size": chance.choice(["auto", "auto", 1 if size < 50 else 20]),
            "max_workers": chance.choice([None, None, 1]),
        }
        options = {key: value for key, value in options.items() if value is not None}
        model = self._running.model(seconds=seconds, lethal=lethal)
        job = patiently(lambda: client.submit(model, queries, key=name, name=name, **options))
        cancelled = size > 50 and chance.random() < 0.15 and self._cancel(job)
        row = patiently(lambda: client.wait(job, 60))
        assert row["state"] == ("cancelled" if cancelled else "done"), (name, row)
        rows = patiently(lambda: list(client.results(job)))
        indices = [one["index"] for one in rows]
        assert indices == (sorted(set(indices)) if cancelled else list(range(size))), (name, indices)
        for one in rows:
            query = queries[one["index"]]
            assert one["query"] == query, (name, one)
            if query == "broken" and broken:
                assert one["error"] == "ValueError: a broken query", (name, one)
            elif query == lethal:
                assert "this query has no result after " in one["error"], (name, one)
            else:
                assert one.get("result") == 2 * query, (name, row, str(one)[:300])
        assert [one["job"] for one in patiently(lambda: client.rows("jobs")) if one["name"] == name] == [job]
        self.counts.update({row["state"]: 1, "queries": len(rows), "lethal": bool(lethal)})

    def _cancel(self, job: str) -> bool:
        """Cancel a job; return whether it had not ended before."""
        try:
            patiently(lambda: self._running.client.cancel(job))
        except ConflictError:
            return False
        return True

    def _asks(self) -> None:
        number, answered_s = 0, time.monotonic()
        while not self._ended.wait(0.05):
            number += 1
            try:
                answer = self._running.client.ask(SERVED, [number], timeout_s=60.0)
            except (UnavailableError, TimeLimitError):  # no coordinator: a single query is not kept
                self.counts["unanswered"] += 1
            else:
                assert answer == [{"result": 2 * number}]
                self.counts["answers"] += 1
                self.gap_s = max(self.gap_s, time.monotonic() - answered_s)
                answered_s = time.monotonic()


def patiently(call: Callable[[], T]) -> T:
    """Return the result of a call; repeat it while the cluster has no coordinator, or no space."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return call()
        except (UnavailableError, NoSpaceError, TimeLimitError) as error:
            if time.monotonic() > deadline_s:
                raise
            del error
        threading.Event().wait(0.2)


def settled(call: Callable[[], object]) -> bool:
    """Make a call that may fail for a reason of the moment; return whether it succeeded."""
    try:
        call()
    except ChimeraError:
        return False
    return True

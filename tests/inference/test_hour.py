"""A soak in real time: users, faults and full disks for an hour, after which the cluster takes no more than in the middle.

``CHIMERA_SOAK_S`` sets another length in seconds.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

import pytest
from tests.disk_kit import fill, small_disk

from chimera.inference.cluster_folder import ClusterFolder
from chimera.inference.journal.sqlite import SqliteJournal
from chimera.inference.membership import Members
from inference.census import ROLES, Census, census, children_of, left_of
from inference.journal_kit import committed_once
from inference.running import RunningCluster, cluster, until
from inference.users import SERVED, Users, patiently, settled

SOAK_S = float(os.environ.get("CHIMERA_SOAK_S", "3600"))
KEEP_S = 60.0
"""A job is deleted so long after its end."""
DISK_MIB, FREE_MIB = 512, 64
WORKERS = 3
CENSUS_S, FAULT_S = 5.0, 2.5
HANG_S = 3.0
CALM = 0.6
"""From this share of each half on, processes live: what grows in them shows."""
MARGINS = {"MiB": (1.25, 16.0), "threads": (1.25, 8.0), "files": (1.25, 16.0)}
"""A figure of the second half is at most so many times that of the first one, and so much more."""
FOLDER_MARGIN = (1.5, 16.0)
CALM_MARGIN = (1.15, 8.0)
WARM_S = 2 * KEEP_S
"""So long after the last fault a new coordinator still grows: until as many jobs are deleted as are added, and for its heap."""
LOGS_MIB = 32.0
"""The largest size of the logs of a process."""


class Faults:
    """Faults of all kinds, one after the other: each kind once or more, in a random order, before any of them comes again.

    Attributes
    ----------
    counts : number of faults by kind.
    """

    def __init__(self, running: RunningCluster, disk: Path | None, seed: int) -> None:
        self._running, self._disk, self._random = running, disk, random.Random(seed)
        self._log = running.folder.parent / "up.log"
        self._timers: list[threading.Timer] = []
        self.counts: Counter[str] = Counter()
        self._harsh: list[Callable[[], object]] = [
            *[lambda: self._strike("worker", signal.SIGKILL)] * 4,
            *[lambda: self._strike("worker", signal.SIGSTOP)] * 3,
            *[lambda: self._strike("compute", signal.SIGKILL), lambda: self._strike("compute", signal.SIGSTOP)] * 2,
            *[lambda: self._strike("coordinator", signal.SIGKILL)] * 3,
            *[lambda: self._strike("coordinator", signal.SIGSTOP)] * 2,
            lambda: self._strike("standby", signal.SIGKILL),
            self._orphan,
            *[self._fill_disk] * (disk is not None),
        ]
        self._deck: list[Callable[[], object]] = []
        self._gentle = [*[self._drain] * 2, *[self._restart] * 3, *[self._scale] * 2]

    def next(self, *, calm: bool) -> None:
        """Do the next harm; in calm times, none by which a process dies or hangs."""
        if calm:
            self._random.choice(self._gentle)()
            return
        if not self._deck:
            self._deck = self._random.sample(kinds := [*self._harsh, *self._gentle], len(kinds))
        self._deck.pop()()

    def end(self) -> None:
        """Let stopped processes continue, and bring back all workers."""
        for timer in self._timers:
            timer.join()
        self._scale(WORKERS)
        for row in patiently(lambda: self._running.client.rows("workers")):
            settled(lambda row=row: self._running.client.restart(row["worker"]))

    def _strike(self, role: str, number: signal.Signals) -> None:
        """Kill or stop a process."""
        members = Members(ClusterFolder(self._running.folder).members).members()
        pids = [one.pid for one in members if one.role == ("worker" if role == "compute" else role)]
        if role == "compute":
            pids = [child for pid in pids for child in children_of(pid)]
        if pids:
            self.counts[f"{role} {number.name}"] += 1
            self._signal(self._random.choice(pids), number)

    def _orphan(self) -> None:
        """Stop the computing process of a worker, and kill the worker."""
        self.counts["worker SIGKILL, its computing process stopped"] += 1
        pid = patiently(lambda: self._running.member("worker"))["pid"]
        for child in children_of(pid):
            self._signal(child, signal.SIGSTOP)
        self._signal(pid, signal.SIGKILL)

    def _signal(self, pid: int, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        if number == signal.SIGSTOP:
            timer = threading.Timer(HANG_S, self._signal, (pid, signal.SIGCONT))
            timer.start()
            self._timers = [one for one in self._timers if one.is_alive()] + [timer]

    def _drain(self) -> None:
        self.counts["drain"] += settled(lambda: self._running.client.drain(self._worker()))

    def _restart(self) -> None:
        self.counts["restart"] += settled(lambda: self._running.client.restart(self._worker()))

    def _worker(self) -> str:
        return f"w{self._random.randrange(WORKERS)}"

    def _scale(self, count: int | None = None) -> None:
        self.counts["scale"] += 1
        patiently(lambda: self._running.client.scale(self._random.randrange(2, 6) if count is None else count))

    def _fill_disk(self) -> None:
        """Fill the disk until the coordinator has exited; then there is space again."""
        assert self._disk is not None
        self.counts["full disk"] += 1
        before = self._exits()
        fill(self._disk)
        full_s = time.monotonic()
        with suppress(AssertionError):  # the users may have had nothing to write
            until(lambda: self._exits() > before, 10)
        threading.Event().wait(self._random.uniform(0.0, 4.0))
        (self._disk / "fill").unlink()
        self.counts["coordinator exits on a full disk"] += self._exits() > before
        self.counts["full disk, s"] += round(time.monotonic() - full_s)

    def _exits(self) -> int:
        return self._log.read_bytes().count(b"exited with code 1 (the disk of ")


@pytest.mark.slow
def test_an_hour_of_faults_leaves_no_more_than_half_an_hour(tmp_path: Path) -> None:
    options = ["--keep-days", str(KEEP_S / 86_400), "--port", "0"]
    with disk_or_folder(tmp_path / "cluster") as disk, cluster(tmp_path, workers=WORKERS, options=options) as running:
        faults, users = Faults(running, disk, seed=1), Users(running, seed=1)
        halves: list[list[Census]] = [[], []]
        try:
            with closing(SqliteJournal(ClusterFolder(running.folder).journal)) as journal:
                for half in halves:
                    half += _endure(running, faults, users, journal)
                faults.end()
                users.end()
                _tell(faults, users, halves)
                committed_once(journal.records())
        finally:
            users.end()
        hold_bounds(*halves)
        hold_rest(running)
    until(lambda: not left_of(tmp_path / "cluster"), 20)


def _endure(running: RunningCluster, faults: Faults, users: Users, journal: SqliteJournal) -> list[Census]:
    """Do harm for half of the time, while users come and go; return the counts of the processes on the way."""
    began_s, found = time.monotonic(), list[Census]()
    counted_s, struck_s, zombies = began_s, began_s, set[int]()
    while (now_s := time.monotonic()) < began_s + SOAK_S / 2:
        calm = now_s > began_s + CALM * SOAK_S / 2
        if now_s > struck_s + FAULT_S:
            faults.next(calm=calm)
            struck_s = time.monotonic()
        if now_s > counted_s + CENSUS_S:
            found.append(census(running.folder, running.up.pid, now_s - began_s, calm=calm))
            before, zombies = zombies, found[-1].zombies()
            assert not before & zombies, "the parent of a process that has ended does not ask for its exit code"
            committed_once(journal.records())
            counted_s = now_s
        users.check()
        assert running.up.poll() is None, "'up' has ended"
        threading.Event().wait(0.1)
    return found


def hold_bounds(first: Sequence[Census], second: Sequence[Census]) -> None:
    """Hold that the second half took no more than the first one, nor a calm coordinator at its end than at its begin."""
    before, after = largest(first), largest(second)
    assert all(figures[f"{role} MiB"] for figures in (before, after) for role in ROLES), "the census lacks a role"
    for what in before:
        times, more = MARGINS.get(what.split()[1] if " " in what else "", FOLDER_MARGIN)
        times, more = FOLDER_MARGIN if what.startswith("journal") else (times, more)
        assert after[what] <= times * before[what] + more, (what, before[what], after[what])
    for half in (first, second):
        early, late = calm_growth(half)  # zeros in a run of less than 16 minutes
        assert late <= CALM_MARGIN[0] * early + CALM_MARGIN[1], ("coordinator MiB while all is calm", early, late)


def largest(half: Sequence[Census]) -> dict[str, float]:
    """Return the largest of each figure."""
    figures = [one.figures() for one in half]
    return {what: max(one[what] for one in figures) for what in figures[0]}


def calm_growth(half: Sequence[Census]) -> tuple[float, float]:
    """Return the memory of coordinators, in MiB, early and late in the calm part after `WARM_S`; 0 if it is too short."""
    calm = [one for one in half if one.calm]
    warm = [one for one in calm if one.at_s > calm[0].at_s + WARM_S]
    if not warm or warm[-1].at_s < warm[0].at_s + WARM_S / 2:
        return 0.0, 0.0
    own = [max(each.memory_mib for each in one.processes if each.role == "coordinator") for one in warm]
    third = max(len(own) // 3, 1)
    return statistics.median(own[:third]), statistics.median(own[-third:])


def hold_rest(running: RunningCluster) -> None:
    """Hold that everything is deleted in the end, and that the journal has shrunk."""
    kept = {SERVED}
    until(
        lambda: len([row for row in patiently(lambda: running.client.rows("jobs")) if row["name"] not in kept]) <= 1,
        300,
    )
    until(lambda: {row["state"] for row in running.client.rows("workers")} == {"free"}, 60)
    assert len(running.client.rows("workers")) == WORKERS
    journal = ClusterFolder(running.folder).journal
    until(lambda: journal.stat().st_size < 4 << 20, 60)
    logs = [list(place.iterdir()) for place in (running.folder / "logs").iterdir()]
    for files in logs:
        assert sum(file.stat().st_size for file in files) < LOGS_MIB * (1 << 20), files
    names = sorted(one.name for one in Members(ClusterFolder(running.folder).members).members())
    assert names == ["c0", "c1", *(f"w{i}" for i in range(WORKERS))]
    sys.stderr.write(f"the journal has {journal.stat().st_size >> 10} KiB in the end\n")


@contextlib.contextmanager
def disk_or_folder(place: Path) -> Iterator[Path | None]:
    """Give the cluster a disk of its own that can be filled; None where that takes rights that the user lacks."""
    with contextlib.ExitStack() as mounted:
        try:
            disk = mounted.enter_context(small_disk(place, DISK_MIB))
        except pytest.skip.Exception as why:
            sys.stderr.write(f"no disk is filled: {why}\n")
            yield None
        else:
            yield disk


def _tell(faults: Faults, users: Users, halves: Sequence[Sequence[Census]]) -> None:
    sys.stderr.write(f"faults: {dict(faults.counts)}\n")
    sys.stderr.write(f"users: {dict(users.counts)}, at most {users.gap_s:.1f} s without an answer\n")
    before, after = (largest(half) for half in halves)
    for what in before:
        sys.stderr.write(f"{what}: {before[what]:.1f}, then {after[what]:.1f}\n")
    for half in halves:
        early, late = calm_growth(half)
        sys.stderr.write(f"a calm coordinator: {early:.1f} MiB, then {late:.1f}; logs {half[-1].logs_mib:.1f} MiB\n")

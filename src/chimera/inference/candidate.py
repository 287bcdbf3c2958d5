"""A candidate for the lease of the journal: the coordinator of a cluster, or a standby."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from chimera.core.errors import ChimeraError
from chimera.inference.cluster_folder import ClusterFolder
from chimera.inference.coordinator.coordinator import Coordinator, NotCoordinator
from chimera.inference.coordinator.renewal import LEASE_S
from chimera.inference.coordinator.worker_handle import SILENT_S
from chimera.inference.failing import FailingProcesses
from chimera.inference.journal.journal import Fenced, Journal, Lease
from chimera.inference.membership import HEARTBEAT_S, Member, Members
from chimera.inference.policies.policy import POLICIES
from chimera.inference.pool.pool import Pool
from chimera.inference.remote_workers.pool import Pools, RemoteWorkers
from chimera.web.disk_guard import DiskGuard
from chimera.web.logs import status

POLL_S = 0.05
"""Seconds between two attempts of a standby to acquire the lease."""


class Candidate:
    """A candidate for the lease: the coordinator while it has the lease, else a standby.

    Parameters
    ----------
    name : name of this process.
    folder : folder of the cluster.
    policy : name of the policy.
    fair_by : unit of the shares of jobs, ``queries`` or ``tokens``.
    ray : whether the workers are actors of the Ray cluster that this process has joined.
    journal : opens the journal.
    keep_s : seconds after its end until a job is deleted; default: never.
    code : whether to accept models that run code of their own.
    shares_files : whether all candidates run on one machine, so that they can read the same files.

    Attributes
    ----------
    remote : the workers of other machines.
    failure : the error that has ended the candidate; None while there is none. The process must exit then.
    """

    def __init__(
        self,
        name: str,
        folder: ClusterFolder,
        policy: str,
        *,
        fair_by: str = "queries",
        ray: bool,
        journal: Callable[[], Journal],
        keep_s: float | None = None,
        code: bool = True,
        shares_files: bool = True,
    ) -> None:
        self._keep_s, self._code, self._shares_files = keep_s, code, shares_files
        self._open_journal, self._last_epoch = journal, 0
        self._name, self._folder, self._policy, self._fair_by = name, folder, policy, fair_by
        self._members, self._failing = Members(folder.members), FailingProcesses(folder.failing)
        self.remote = RemoteWorkers()
        self._pool = Pools(_pool(self._members, folder.token(), ray=ray), self.remote)
        self._leading: Coordinator | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chimera-candidate")
        self._address, self._waits_for = "", "another process is the coordinator"
        self._disk = DiskGuard(folder.path)
        self.failure: str | None = None
        self._failed: Callable[[], None] = lambda: None

    def start(self, address: str, failed: Callable[[], None] = lambda: None) -> None:
        """Start to compete for the lease. This process answers at the address.

        Parameters
        ----------
        failed : called in the candidate's thread after an error has ended the candidate.
        """
        self._address, self._failed = address, failed
        self._thread.start()

    def stop(self) -> None:
        """Release the lease, and stop."""
        self._stopped.set()
        if self._leading is not None:
            self._leading.stop()
        if self._thread.is_alive():
            self._thread.join()

    def leader(self) -> Coordinator:
        """Return the coordinator of this process.

        Raises
        ------
        NotCoordinator : this process is a standby, or has lost the lease.
        """
        leading = self._leading
        if leading is None:
            raise NotCoordinator(f"{self._name} stands by: {self._waits_for}")
        leading.check_leads()
        return leading

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per process of the cluster."""
        found = [*self._members.members(), *self._pool.members()]
        highest = max((one.epoch for one in found if one.role == "coordinator"), default=0)
        failing = self._failing.states()
        rows = [_row(one, highest) for one in found]
        for row in rows:
            if one := failing.pop(row["name"], None):
                row["state"] = f"{row['state']}; {one.state}"
        return rows + [_row(one, highest) | {"state": one.state} for one in failing.values()]

    def about(self) -> dict[str, Any]:
        """Return the fields of ``/health``: ``failing`` has the names of processes that fail at their start."""
        return {"name": self._name, "kind": "coordinator", "failing": sorted(self._failing.states())}

    def _run(self) -> None:
        try:
            self._compete()
        except Exception as error:  # a standby that has lost its journal or its thread must not remain a standby
            known = isinstance(error, ChimeraError)
            self.failure = str(error) if known else f"{type(error).__name__}: {error}"
            status().error("%s ends: %s", self._name, self.failure, exc_info=None if known else error)
            self._failed()

    def _compete(self) -> None:
        journal = self._open_journal()
        self._members.join("standby", self._name, self._address, state="stands by")
        threading.Thread(target=self._beat, name="chimera-beat", daemon=True).start()
        try:
            while not self._stopped.wait(POLL_S):
                try:
                    lease = journal.acquire(self._name, self._address, LEASE_S)
                    seen = lease or journal.lease()
                except Fenced:
                    self._waits_for = "no majority of the voters answers"
                    continue
                self._waits_for = "another process is the coordinator"
                if seen is not None and seen.epoch != self._last_epoch:
                    self._last_epoch = seen.epoch
                    self._folder.note_leader(seen.epoch, seen.address)
                if lease is not None:
                    self._members.beat(self._name, role="coordinator", state=self._state("leads"), epoch=lease.epoch)
                    self._lead(journal, lease)
                    self._members.beat(self._name, role="standby", state=self._state("stands by"))
        finally:
            self._members.leave(self._name)
            journal.close()

    def _beat(self) -> None:
        while not self._stopped.wait(HEARTBEAT_S):
            leading = self._leading
            self._members.beat(self._name, state=self._state("stands by" if leading is None else "leads"))
            if leading is not None and self._folder.leader() is None:  # its file was deleted
                with contextlib.suppress(OSError):  # for instance a full disk: it is tried again
                    self._folder.note_leader(leading.lease.epoch, self._address)

    def _state(self, state: str) -> str:
        warning = self._disk.warning()
        return f"{state}; {warning}" if warning else state

    def _lead(self, journal: Journal, lease: Lease) -> None:
        policy = POLICIES.create(self._policy)
        leading = Coordinator(
            journal, lease, policy, pool=self._pool, fair_by=self._fair_by, keep_s=self._keep_s, code=self._code,
            disk=self._disk, shares_files=self._shares_files,
        )  # fmt: skip
        self._leading = leading
        if self._stopped.is_set():  # `stop` may have looked before there was a coordinator
            leading.stop()
        try:
            leading.lead()
        finally:
            self._leading = None
        if self._stopped.is_set():
            journal.release(lease.epoch)


def _pool(members: Members, token: str, *, ray: bool) -> Pool:
    if ray:
        from chimera.inference.pool.ray import RayPool, namespace_of

        return RayPool(namespace_of(token))
    from chimera.inference.pool.http import HttpPool

    return HttpPool(members, token)


def _row(member: Member, highest: int) -> dict[str, Any]:
    """Return the row of a process. A coordinator of an earlier epoch that has not noticed its end is a standby."""
    role: str = member.role
    if role == "coordinator" and member.epoch < highest:
        role = "standby"
    age_s = member.heartbeat_age_s()
    return {
        "role": role,
        "name": member.name,
        "host": member.host,
        "pid": member.pid,
        "address": member.address,
        "state": member.state if age_s < SILENT_S else "silent",
        "epoch": member.epoch,
        "heartbeat_age_s": age_s,
    }

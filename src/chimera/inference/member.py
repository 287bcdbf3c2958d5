"""A process that coordinates the cluster, or stands by to do so; run as a module, on a leash."""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from chimera.core.errors import ChimeraError
from chimera.engines.leash import hold
from chimera.inference.cluster_folder import ClusterFolder
from chimera.inference.coordinator import LEASE_S, Coordinator, NotCoordinator
from chimera.inference.journal.journal import Journal, Lease
from chimera.inference.journal.members import BEAT_S, Member, Members
from chimera.inference.policies.policy import POLICIES
from chimera.inference.seat import SILENT_S

LOOK_S = 0.05
"""How often a standby looks whether the lease is over."""


class Candidate:
    """Leads while it has the lease, and stands by while another one has it.

    Parameters
    ----------
    name : of this process.
    folder : of the cluster.
    policy : by name.
    """

    def __init__(self, name: str, folder: ClusterFolder, policy: str) -> None:
        self._name, self._folder, self._policy = name, folder, policy
        self._members = Members(folder.members)
        self._leading: Coordinator | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._stand, name="chimera-candidate")
        self._address = ""

    def begin(self, address: str) -> None:
        """Take part, as who answers at this address."""
        self._address = address
        self._thread.start()

    def end(self) -> None:
        """Hand the lease back, and take part no more."""
        self._stopped.set()
        if self._leading is not None:
            self._leading.stop()
        if self._thread.is_alive():
            self._thread.join()

    def leader(self) -> Coordinator:
        """Return the coordinator that this process is.

        Raises
        ------
        NotCoordinator : it is none.
        """
        leading = self._leading
        if leading is None:
            raise NotCoordinator(f"{self._name} stands by: another process is the coordinator")
        leading.check_leads()
        return leading

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each process of the cluster."""
        found = self._members.members()
        highest = max((one.epoch for one in found if one.role == "coordinator"), default=0)
        return [_row(one, highest) for one in found]

    def _stand(self) -> None:
        from chimera.inference.journal.sqlite import SqliteJournal

        journal = SqliteJournal(self._folder.journal)
        self._members.join("standby", self._name, self._address, state="stands by")
        threading.Thread(target=self._beat, name="chimera-beat", daemon=True).start()
        try:
            while not self._stopped.wait(LOOK_S):
                lease = journal.acquire(self._name, self._address, LEASE_S)
                if lease is not None:
                    self._members.beat(self._name, role="coordinator", state="leads", epoch=lease.epoch)
                    self._lead(journal, lease)
                    self._members.beat(self._name, role="standby", state="stands by")
        finally:
            self._members.leave(self._name)
            journal.close()

    def _beat(self) -> None:
        while not self._stopped.wait(BEAT_S):
            self._members.beat(self._name)

    def _lead(self, journal: Journal, lease: Lease) -> None:
        from chimera.inference.pool.http import HttpLink

        token = self._folder.token()
        leading = Coordinator(
            journal,
            lease,
            POLICIES.create(self._policy),
            workers=lambda: {m.name: m.address for m in self._members.members() if m.role == "worker"},
            links=lambda address: HttpLink(address, token),
        )
        self._leading = leading
        try:
            leading.lead()
        finally:
            self._leading = None
        if self._stopped.is_set():
            journal.release(lease.epoch)


def _row(member: Member, highest: int) -> dict[str, Any]:
    """Return what is told of a process; one that led in an earlier epoch, and has not noticed, leads no more."""
    role: str = member.role
    if role == "coordinator" and member.epoch < highest:
        role = "standby"
    age_s = member.heartbeat_age_s()
    return {
        "role": role,
        "name": member.name,
        "host": member.host,
        "pid": member.pid,
        "state": member.state if age_s < SILENT_S else "silent",
        "epoch": member.epoch,
        "heartbeat_age_s": age_s,
    }


def main() -> None:
    """Serve until SIGTERM."""
    from chimera.inference.app import jobs_router
    from chimera.web.app import create_app, serve

    hold()
    parser = argparse.ArgumentParser()
    parser.add_argument("--cluster", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--policy", default="fair-share")
    options = parser.parse_args()
    folder = ClusterFolder(options.cluster)
    os.chdir(folder.logs(options.name))  # the logs are written there
    access = folder.access()
    candidate = Candidate(options.name, folder, options.policy)
    app = create_app(
        title=f"Chimera inference {options.name}",
        settings=access,
        routers=[jobs_router(candidate.leader, candidate.rows)],
        about={"name": options.name, "kind": "coordinator"},
    )
    try:
        serve(
            app, host="127.0.0.1", port=0, settings=access,
            on_started=lambda: candidate.begin("http://{}:{}".format(*app.state.address)),
        )  # fmt: skip
    except ChimeraError as error:
        sys.stderr.write(f"{time.strftime('%H:%M:%S')} {options.name}, process {os.getpid()}: {error}\n")
        raise SystemExit(1) from None
    finally:
        candidate.end()


if __name__ == "__main__":
    main()

"""Three voters of a journal, each a real process on this machine."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from chimera.inference.journal.raft.journal import RaftJournal

TOKEN = "between the voters"
_VOTER = """
import json, sys, time
from pathlib import Path
from chimera.inference.journal.raft.journal import RaftJournal

place, number = Path(sys.argv[1]), int(sys.argv[2])
voters = json.loads((place / "voters.json").read_text())
journal = RaftJournal(voters, voters[number], sys.argv[3], place / str(number))
print("up", flush=True)
for line in sys.stdin:
    while journal._voter._getRaftLogSize() > 3:  # again, for it may have lacked the last entries
        journal._voter.forceLogCompaction()
        time.sleep(0.01)
    print("compact", flush=True)
"""


class Voters:
    """The voters at a place.

    Attributes
    ----------
    place : folder of the cluster.
    addresses : of all three, also while they are down.
    processes : by number; None where it was killed.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        place.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as held:
            free = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
            self.addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in free]
        (place / "voters.json").write_text(json.dumps(self.addresses))
        self.processes: list[subprocess.Popen[bytes] | None] = [None] * 3
        for number in range(3):
            self.start(number)
        for number in range(3):
            self.await_start(number)

    def start(self, number: int) -> None:
        """Start or restart a voter."""
        command = [sys.executable, "-c", _VOTER, str(self.place), str(number), TOKEN]
        with (self.place / f"{number}.out").open("wb") as errors:
            self.processes[number] = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
            )

    def await_start(self, number: int) -> None:
        """Wait until a voter listens."""
        process = self.process(number)
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n", (self.place / f"{number}.out").read_text()

    def process(self, number: int) -> subprocess.Popen[bytes]:
        """Return the process of a voter that was not killed."""
        process = self.processes[number]
        assert process is not None
        return process

    def kill(self, number: int) -> None:
        """Kill a voter."""
        process = self.processes[number]
        if process is not None:
            process.kill()
            process.communicate()
        self.processes[number] = None

    def compact(self, number: int) -> None:
        """Let a voter keep its state as a copy, in place of the log that led to it."""
        process = self.process(number)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"compact\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"compact\n"

    def signal(self, number: int, what: signal.Signals) -> None:
        """Send a signal to a voter."""
        self.process(number).send_signal(what)

    def leader(self, follower: RaftJournal) -> int:
        """Wait until there is a leader, and return it, as a follower sees it."""
        deadline_s = time.monotonic() + 30.0
        while (leader := follower._voter._getLeader()) is None:  # they are about to elect another one
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        return self.addresses.index(leader.id)

    def end(self) -> None:
        """Kill all."""
        for number in range(3):
            self.kill(number)


def following(place: Path) -> RaftJournal:
    """Return the journal as one without a vote has it."""
    return RaftJournal(json.loads((place / "voters.json").read_text()), None, TOKEN, Path(tempfile.mkdtemp(dir=place)))

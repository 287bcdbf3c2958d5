"""A real Slurm on this machine for tests: a controller and two nodes with two processors each."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel")
WAIT_S = 300.0
_START_S = 30.0
_CONFIGURATION = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=pmi2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
SlurmdTimeout=5
KillWait=5
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=2 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=2 State=UNKNOWN
PartitionName=short Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """A running Slurm.

    Attributes
    ----------
    configuration : its file, the value of ``SLURM_CONF``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._processes = folder, dict[str, subprocess.Popen[bytes]]()
        self.configuration = folder / "slurm.conf"

    def start(self) -> None:
        """Start munge, the controller and both nodes, and wait until the nodes are idle."""
        host = socket.gethostname().partition(".")[0]
        controller, first, second = _free_ports(3)
        values = {"host": host, "folder": self._folder, "controller": controller, "first": first, "second": second}
        self.configuration.write_text(_CONFIGURATION.format_map(values))
        (self._folder / "state").mkdir()
        key = self._folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(64))
        files = {"socket": "munge.socket", "pid-file": "munge.pid", "seed-file": "munge.seed", "log-file": "munge.log"}
        options = [f"--{option}={self._folder / name}" for option, name in files.items()]
        self._run("munged", "--foreground", "--force", f"--key-file={key}", *options)
        self._until(lambda: (self._folder / "munge.socket").exists())
        self._run("slurmctld", "-D", "-c")
        for node in ("n1", "n2"):
            self.start_node(node)
        self._until(lambda: self.nodes("idle") == 2)

    def start_node(self, node: str) -> None:
        """Start the daemon of a node."""
        self._run("slurmd", "-D", "-N", node, name=node)

    def kill_node(self, node: str) -> None:
        """Kill all processes of a node at once, as a loss of power does."""
        daemon = self._processes.pop(node)
        jobs = [process for process in self._of_jobs() if _environment(process, "SLURMD_NODENAME") == node]
        steps = {parent for process in jobs for parent in process.parents() if parent.name().startswith("slurmstepd")}
        for process in (psutil.Process(daemon.pid), *steps, *jobs):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        daemon.wait()

    def call(self, *words: str) -> str:
        """Return the output of a command of Slurm."""
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=self.environment, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def nodes(self, state: str) -> int:
        """Return the number of nodes in a state."""
        found = subprocess.run(
            ["sinfo", "-h", "-N", "-t", state, "-o", "%N"],
            capture_output=True,
            text=True,
            check=False,
            env=self.environment,
        )
        return len(found.stdout.split())

    @property
    def environment(self) -> dict[str, str]:
        """Environment of its commands."""
        return {**os.environ, "SLURM_CONF": str(self.configuration)}

    def stop(self) -> None:
        """End all jobs and all daemons, and check that no process remains."""
        subprocess.run(["scancel", "--user=root"], env=self.environment, check=False, timeout=60, capture_output=True)
        with contextlib.suppress(AssertionError):
            until(lambda: not self._of_jobs(), 15.0)
        for process in reversed(self._processes.values()):
            process.terminate()
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()
        left = self._of_jobs()
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        assert not left

    def _run(self, program: str, *words: str, name: str = "") -> None:
        with (self._folder / f"{name or program}.out").open("ab") as out:
            self._processes[name or program] = subprocess.Popen(
                [program, *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=self.environment,
                start_new_session=True,
            )

    def _until(self, true: Callable[[], bool]) -> None:
        def checked() -> bool:
            ended = [name for name, process in self._processes.items() if process.poll() is not None]
            assert not ended, (self._folder / f"{ended[0]}.out").read_text()
            return true()

        until(checked, _START_S)

    def _of_jobs(self) -> list[psutil.Process]:
        """Return the processes of jobs."""
        conf, daemons = str(self.configuration), {process.pid for process in self._processes.values()}
        return [
            process
            for process in psutil.process_iter()
            if process.pid not in daemons
            and _environment(process, "SLURM_CONF") == conf
            and _environment(process, "SLURM_JOB_ID")
        ]


@contextlib.contextmanager
def slurm() -> Iterator[Slurm]:
    """Run a Slurm, to which ``SLURM_CONF`` points meanwhile; skip if it cannot run here."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(
            "Slurm is not installed, or this is not root: as root, apt-get install slurmctld slurmd slurm-client munge"
        )
    folder = Path(tempfile.mkdtemp(prefix="chimera-slurm-"))  # a short path, since it holds a socket
    patch, running = pytest.MonkeyPatch(), Slurm(folder)
    try:
        running.start()
        patch.setenv("SLURM_CONF", str(running.configuration))
        yield running
    finally:
        patch.undo()
        running.stop()
        shutil.rmtree(folder, ignore_errors=True)


def until(true: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
    """Wait until a condition is true."""
    deadline_s = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline_s, "the time is over"
        time.sleep(0.05)


def _environment(process: psutil.Process, variable: str) -> str:
    with contextlib.suppress(psutil.Error):
        return process.environ().get(variable, "")
    return ""


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports

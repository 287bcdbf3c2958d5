"""Clusters of real processes for tests, and commands for them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from chimera.jobs.client.client import Client
from chimera.jobs.cluster.folder import ClusterFolder, Options
from chimera.jobs.session import down, up

EXPERIMENT = """
[data]
name = "digits"

[model]
name = "mlp"
hidden = [16]

[train]
workers = 2
batch_size = 32
rounds = {rounds}
checkpoint_every = 20
optimizer = {{ name = "adam", lr = 3e-3 }}
seed = 1

[strategy]
name = "{strategy}"
"""


class Running:
    """A running cluster.

    Attributes
    ----------
    folder, client : folder and client of the cluster.
    """

    def __init__(self, path: Path, options: Options) -> None:
        self.folder = ClusterFolder(path)
        self._options = options
        self.client: Client = up(self.folder, options)

    def restart(self) -> None:
        """Start the cluster again, after it has ended."""
        assert self.folder.await_end(10.0)
        self.client = up(self.folder, self._options)

    def pids(self, role: str) -> list[int]:
        """Return the process ids of a role."""
        return [row["pid"] for row in self.client.processes() if row["role"] == role]

    def weights(self, job: str) -> str:
        """Return a digest of the weights of a job."""
        return hashlib.sha256((self.folder.job(job).run / "weights.safetensors").read_bytes()).hexdigest()


@contextlib.contextmanager
def running(path: Path, **options: Any) -> Iterator[Running]:
    """Run a cluster, and check that no process of it remains."""
    before = set(psutil.pids())
    cluster = Running(path, Options(**options))
    try:
        yield cluster
    finally:
        down(cluster.folder)
    _, alive = psutil.wait_procs(_of_cluster(before, path), timeout=10)
    assert not alive


def _of_cluster(before: set[int], path: Path) -> list[psutil.Process]:
    """Return the processes that started meanwhile and work in the folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid not in before and Path(process.cwd()).is_relative_to(path):
                found.append(process)
    return found


def experiment(folder: Path, *, rounds: int = 100, strategy: str = "parameter-server", more: str = "") -> Path:
    """Write an experiment file."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "digits.toml"
    file.write_text(EXPERIMENT.format(rounds=rounds, strategy=strategy) + more)
    return file


def chimera(*arguments: object, cwd: Path, timeout_s: float = 300.0) -> subprocess.CompletedProcess[str]:
    """Run the program ``chimera``."""
    return subprocess.run(
        [sys.executable, "-m", "chimera", *map(str, arguments)],
        cwd=cwd, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=timeout_s, check=False,
    )  # fmt: skip


def json_output(*arguments: object, cwd: Path) -> Any:
    """Return the output of the program with ``--json``."""
    ran = chimera(*arguments, "--json", cwd=cwd)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)

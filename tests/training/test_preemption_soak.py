"""A run that is preempted every 20 s, ten times, ends with the bits of one that was left alone."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import mpi_kit
from chimera.training.artifacts.checkpoint import Checkpoints

PREEMPTIONS, EVERY_S, LIMIT_S = 10, 20.0, 900.0
RANKS = 2  # of MPI: on a machine with two cores, a third process would make each start longer
NEVER = 10**9
pytestmark = pytest.mark.slow

EXPERIMENT = f"""
data = "digits"
engine = {{engine}}
strategy = "{{strategy}}"
[model]
name = "mlp"
hidden = [64]
[train]
workers = 2
batch_size = 32
optimizer = {{{{name = "adam", lr = 1e-3}}}}
log_every = 50
evaluate_every = 500
snapshot_every = {NEVER}
checkpoint_seconds = 5
"""


class Attempt:
    """One process of the run, and the seconds that it has spent in rounds: from its first line about a round on."""

    def __init__(self, folder: Path, rounds: int, engine: str) -> None:
        self.began_s = time.monotonic()
        options = ["--set", f"train.rounds={rounds}", "--out", str(folder), "--resume"]
        command = ["-u", "-m", "chimera", "train", str(folder.parent / "experiment.toml"), *options]
        launcher, environment = [sys.executable, *command], dict(os.environ)
        if engine == "mpi":
            mpi = mpi_kit.library("mpich")
            launcher, environment = mpi.command(RANKS, *command), mpi.environment()
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode, too
        self.process = subprocess.Popen(
            launcher, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.begun = any(line.startswith("round ") for line in self.process.stdout)
        self.first_s = time.monotonic()

    def preempt(self) -> None:
        """Signal the process `EVERY_S` after its start."""
        with_output = self.began_s + EVERY_S - time.monotonic()
        try:
            self.process.communicate(timeout=max(with_output, 0.0))
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGTERM)

    def end(self) -> tuple[int, float, float]:
        """Return the exit code, the seconds in rounds, and those after the signal."""
        signalled_s = time.monotonic()
        _, errors = self.process.communicate(timeout=LIMIT_S)
        assert self.begun, errors
        assert "Traceback" not in errors, errors
        return self.process.returncode, signalled_s - self.first_s, time.monotonic() - signalled_s


@contextlib.contextmanager
def table_of(engine: str) -> Iterator[str]:
    """Yield the table of an engine in TOML; start the cluster that ``ray, joined`` joins."""
    if engine == "mpi":
        yield '{ name = "mpi", driver_works = true }'
    elif engine == "ray, joined":
        from ray.cluster_utils import Cluster

        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 8, "include_dashboard": False})
        try:
            yield f'{{ name = "ray", address = "{cluster.address}" }}'
        finally:
            cluster.shutdown()
    else:
        yield f'"{engine}"'


needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="needs Ray: pip install 'chimera-dml[ray]'"
)


@pytest.mark.parametrize(
    ("engine", "strategy"),
    [
        ("simulated", "parameter-server"),
        ("local", "parameter-server"),
        ("local", "all-reduce"),
        ("mpi", "all-reduce"),
        pytest.param("ray", "parameter-server", marks=needs_ray),
        pytest.param("ray, joined", "parameter-server", marks=needs_ray),
    ],
)
def test_a_run_preempted_ten_times_ends_with_the_same_bits(engine: str, strategy: str, tmp_path: Path) -> None:
    """The goodput is the share of the time that is spent in rounds. It is printed: it depends on how fast processes start."""
    with table_of(engine) as table:
        (tmp_path / "experiment.toml").write_text(EXPERIMENT.format(engine=table, strategy=strategy), encoding="utf-8")
        figures = preempt(engine, tmp_path)
    print(json.dumps({"engine": engine, "strategy": strategy, **figures}))  # noqa: T201 - shown with -s
    weights = [(tmp_path / name / "weights.safetensors").read_bytes() for name in ("run", "whole")]
    assert weights[0] == weights[1]


def preempt(engine: str, tmp_path: Path) -> dict[str, float]:
    """Preempt the run ``run``, and complete it and the run ``whole`` with as many rounds; return the figures."""
    folder, in_rounds_s, after_s, starts = tmp_path / "run", 0.0, [], []
    began_s = time.monotonic()
    for _ in range(PREEMPTIONS):
        attempt = Attempt(folder, NEVER, engine)
        attempt.preempt()
        code, spent_s, ended_s = attempt.end()
        assert code == 143
        in_rounds_s += spent_s
        after_s.append(ended_s)
        starts.append(attempt.first_s - attempt.began_s)
    reached = int(Checkpoints(str(folder / "checkpoints")).paths()[-1][-21:-12])
    rounds = reached + reached // (10 * PREEMPTIONS)
    last = Attempt(folder, rounds, engine)
    code, _, remaining_s = last.end()
    assert code == 0
    wall_s = time.monotonic() - began_s
    goodput = (in_rounds_s + remaining_s) / wall_s
    whole = Attempt(tmp_path / "whole", rounds, engine)
    assert whole.end()[0] == 0
    return {
        "rounds": rounds,
        "goodput": round(goodput, 3),
        "start_s": round(sorted(starts)[PREEMPTIONS // 2], 2),
        "after_signal_s": round(sorted(after_s)[PREEMPTIONS // 2], 2),
        "load": os.getloadavg()[0],
    }

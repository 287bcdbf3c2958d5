"""Jobs of MPI from outside: training, mistakes, ends, and launchers."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

import chimera
import mpi_kit
from chimera.cli.ranks import enter_job
from chimera.cli.start import print_warning
from chimera.core.errors import ConfigurationError
from chimera.engines.mpi_launch import Launch, launch_of

LIMIT_S = 120.0
EXAMPLE = str(mpi_kit.TESTS.parent / "examples" / "all_reduce.toml")
LIBRARIES = pytest.mark.parametrize("name", ["mpich", pytest.param("openmpi", marks=pytest.mark.long)])


def run(name: str, ranks: int, *arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run Python on some ranks until the job ends."""
    found = mpi_kit.library(name)
    command = found.command(ranks, *arguments)
    environment = found.environment()
    return subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


@pytest.mark.takes("three processes import the trainer")
@LIBRARIES
def test_runs_on_ranks_give_the_bits_of_virtual_time(name: str, tmp_path: Path) -> None:
    strategies = ["parameter-server", "parameter-server:with-workers", "all-reduce"]
    job = run(name, 3, "-m", "engines.mpi_training", str(tmp_path), *strategies)
    assert (job.returncode, job.stdout.split()) == (0, strategies), job.stdout + job.stderr


@pytest.mark.parametrize(
    ("variables", "launch"),
    [
        ({}, Launch(0, 1)),
        ({"PMI_RANK": "2", "PMI_SIZE": "5"}, Launch(2, 5)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3"}, Launch(1, 3)),
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4"}, Launch(3, 4)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, Launch(0, 1)),  # in a batch script, outside srun
    ],
)
def test_the_rank_is_that_of_the_launcher(variables: dict[str, str], launch: Launch) -> None:
    assert launch_of(variables) == launch


@pytest.mark.parametrize("command", ["calibrate", "compare", "demo", "retry", "submit"])
def test_a_command_of_one_process_is_refused_under_a_launcher(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMI_SIZE", "3")
    monkeypatch.setenv("PMI_RANK", "0")
    with pytest.raises(ConfigurationError, match=f"3 processes, and each would run 'chimera {command}'"):
        enter_job([command, "x.toml", "--engine", "mpi"])
    monkeypatch.setenv("PMI_RANK", "1")
    with pytest.raises(SystemExit):  # rank 0 reports it
        enter_job([command, "x.toml", "--engine", "mpi"])


@pytest.mark.parametrize("command", ["calibrate", "compare", "demo", "retry", "submit"])
def test_a_command_of_one_process_is_refused_under_torchrun(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "a", "WORLD_SIZE": "2", "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=r"2 processes, .* type the command without torchrun"):
        enter_job([command])
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(SystemExit):  # rank 0 reports it
        enter_job([command])


def test_a_rank_that_hosts_actors_imports_no_commands() -> None:
    code = """
import atexit, sys
from chimera.cli.start import main
atexit.register(lambda: print("chimera.cli.main" in sys.modules))
sys.argv = ["chimera", "train", "x.toml", "--engine", "local"]
main()
"""
    rank = os.environ | {"PMI_RANK": "1", "PMI_SIZE": "2", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], env=rank, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (2, "False\n", "")  # rank 0 reports the mistake


@pytest.mark.parametrize(
    ("event", "code", "text"),
    [
        ("warnings.warn('slow')", 0, "warning: slow\n"),
        ("raise KeyboardInterrupt", 130, ""),
        ("raise ConfigurationError('torchrun')", 2, "error: torchrun\n"),
    ],
    ids=["warning", "Ctrl-C", "torchrun in srun"],
)
def test_a_rank_that_hosts_actors_reports_as_the_program_does(event: str, code: int, text: str) -> None:
    program = f"""
import sys, warnings
import chimera.cli.ranks, chimera.cli.start
from chimera.core.errors import ConfigurationError
def enter_job(_):
    {event}
    raise SystemExit(0)
chimera.cli.ranks.enter_job = enter_job
sys.argv = ["chimera", "train"]
chimera.cli.start.main()
"""
    rank = os.environ | {"PMI_RANK": "1", "PMI_SIZE": "2", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", program], env=rank, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, text)


def test_a_warning_without_stderr_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", None)
    print_warning("slow")


def test_without_a_launcher_the_error_shows_what_to_type() -> None:
    pytest.importorskip("mpi4py", reason="mpi4py is not installed: pip install 'chimera-dml[mpi]' mpich")
    with pytest.raises(ConfigurationError, match=r"mpiexec -n 5 chimera train .* driver_works = true"):
        chimera.engine("mpi")


@pytest.mark.long
@LIBRARIES
def test_only_rank_0_needs_the_file_of_the_experiment(name: str, tmp_path: Path) -> None:
    (tmp_path / "here.toml").write_text('engine = "mpi"\n' + Path(EXAMPLE).read_text(encoding="utf-8"))
    found = mpi_kit.library(name)
    first, others = (found.command(ranks, "-m", "chimera", "train", "--quiet") for ranks in (1, 2))
    command = [*first, "here.toml", "--set", "train.epochs=1", ":", *others[1:], "elsewhere.toml"]
    job = subprocess.run(
        command, env=found.environment(), cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert job.returncode == 0, job.stderr
    assert list(tmp_path.glob("runs/*/report.html"))


@pytest.mark.long
@LIBRARIES
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.toml", "--engine", "mpi"], "there is no experiment file 'missing.toml'"),
        (["missing.toml"], "there is no experiment file 'missing.toml'"),
        ([EXAMPLE, "--engine", "mpi", "--set", "train.workers=0"], "workers must be at least 1, not 0"),
        ([EXAMPLE], "the launcher started 3 processes, but the engine is 'local'"),
        ([EXAMPLE, "--engine", "mpi", "--fault", "hang worker 0 at step 3"], "cannot inject 'hang'"),
    ],
)
def test_a_mistake_is_reported_once(name: str, arguments: list[str], said: str, tmp_path: Path) -> None:
    job = run(name, 3, "-m", "chimera", "train", "--quiet", *arguments, folder=tmp_path)
    assert job.returncode == 2
    assert [line for line in job.stderr.splitlines() if "error: " in line and said in line] != []
    assert (job.stdout + job.stderr).count(said) == 1


@pytest.mark.long
def test_torchrun_is_refused_once(tmp_path: Path) -> None:
    torchrun = shutil.which(str(Path(sys.executable).with_name("torchrun")))
    if torchrun is None:
        pytest.skip("torchrun is not installed: pip install 'chimera-dml[train]'")
    command = [torchrun, "--nproc-per-node", "2", "-m", "chimera", "train", EXAMPLE]
    paths = os.pathsep.join(filter(None, sys.path))
    job = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": paths}, cwd=tmp_path, capture_output=True, text=True, check=False,
        timeout=LIMIT_S,
    )  # fmt: skip
    assert job.returncode != 0
    assert job.stderr.count("error: torchrun started 2 processes") == 1
    assert list(tmp_path.iterdir()) == []


def until(known: Callable[[], bool]) -> None:
    """Wait until an event, or fail."""
    deadline_s = time.monotonic() + LIMIT_S
    while not known():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], tuple[subprocess.Popen[str], list[psutil.Process]]]]:
    """Return a function that starts a long run as a job, and returns it with its processes once it trains."""
    jobs: list[subprocess.Popen[str]] = []

    def begin(name: str) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
        found = mpi_kit.library(name)
        endless = [
            "--set",
            "train.epochs=100000",
            "--set",
            "train.target.accuracy=1.1",
            "--set",
            "train.checkpoint_every=20",
        ]
        command = found.command(3, "-m", "chimera", "train", EXAMPLE, "--engine", "mpi", *endless, "--out", "run")
        job = subprocess.Popen(
            command, env=found.environment(), cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        jobs.append(job)
        until(lambda: job.poll() is not None or any((tmp_path / "run").glob("checkpoints/*.safetensors")))
        assert job.poll() is None
        return job, psutil.Process(job.pid).children(recursive=True)

    yield begin
    for job in jobs:
        for process in psutil.Process(job.pid).children(recursive=True) if job.poll() is None else []:
            process.kill()
        job.kill()
        job.communicate()


@pytest.mark.long
@LIBRARIES
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_after_a_signal_to_the_launcher(start: Callable[..., object], name: str, number: int) -> None:
    job, processes = start(name)  # type: ignore[misc]
    job.send_signal(number)
    assert job.wait(LIMIT_S) != 0
    assert psutil.wait_procs(processes, timeout=LIMIT_S)[1] == []


@pytest.mark.long
@LIBRARIES
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_preempted_job_writes_a_checkpoint_and_resumes_with_the_same_bits(
    start: Callable[..., object], name: str, number: int, tmp_path: Path
) -> None:
    if (name, number) == ("openmpi", signal.SIGTERM):
        pytest.skip("the launcher of Open MPI kills the job at SIGTERM: send SIGUSR1")
    job, _ = start(name)  # type: ignore[misc]
    job.send_signal(number)
    _, errors = job.communicate(timeout=LIMIT_S)
    assert (
        errors.count(f"ended by {signal.Signals(number).name}; the last checkpoint is {tmp_path}/run/checkpoints/") == 1
    )
    rounds = int(max((tmp_path / "run/checkpoints").iterdir()).name[6:15]) + 20
    for folder, more in (("run", ["--resume"]), ("whole", [])):
        until = ["--set", f"train.rounds={rounds}", "--set", "train.checkpoint_every=20", "--quiet"]
        ended = run(
            name,
            3,
            "-m",
            "chimera",
            "train",
            EXAMPLE,
            "--engine",
            "mpi",
            *until,
            "--out",
            folder,
            *more,
            folder=tmp_path,
        )
        assert ended.returncode == 0, ended.stderr
    resumed, whole = (load_file(tmp_path / folder / "weights.safetensors") for folder in ("run", "whole"))
    for tensor in whole:
        np.testing.assert_array_equal(resumed[tensor], whole[tensor])


@pytest.mark.long
@LIBRARIES
def test_the_death_of_a_rank_ends_the_job_and_another_number_of_ranks_resumes(
    start: Callable[..., object], name: str, tmp_path: Path
) -> None:
    job, processes = start(name)  # type: ignore[misc]
    ranks = [process for process in processes if "chimera" in process.cmdline()]
    ranks[-1].kill()
    assert job.wait(LIMIT_S) != 0
    assert psutil.wait_procs(processes, timeout=LIMIT_S)[1] == []
    shorter = ["--engine", "mpi", "--set", "train.epochs=30", "--out", "run", "--resume", "--quiet"]
    resumed = run(name, 5, "-m", "chimera", "train", EXAMPLE, *shorter, folder=tmp_path)
    assert resumed.returncode == 0, resumed.stderr


@pytest.mark.long
@LIBRARIES
def test_a_driver_that_works_needs_no_other_rank(name: str, tmp_path: Path) -> None:
    works = ["--set", "engine.driver_works=true", "--quiet", "--set", "train.epochs=2"]
    job = run(name, 1, "-m", "chimera", "train", EXAMPLE, "--engine", "mpi", *works, folder=tmp_path)
    assert job.returncode == 0, job.stderr


@pytest.mark.long
@LIBRARIES
@pytest.mark.parametrize(("learners", "pipelines"), [(2, 0), (1, 1)])
def test_word_vectors_are_those_of_the_local_engine(name: str, learners: int, pipelines: int, tmp_path: Path) -> None:
    words = ["".join(letters) for letters in itertools.product("abcdefgh", "xyzuvw")]
    drawn = np.random.default_rng(0).choice(words, (300, 12))
    (tmp_path / "text.txt").write_text("\n".join(map(" ".join, drawn)), encoding="utf-8")
    numbers = ["--learners", str(learners), "--pipelines", str(pipelines), "--rounds", "3", "--quiet"]
    command = ["-m", "chimera", "embed", "text.txt", "--output", "negative-sampling", *numbers]
    found = mpi_kit.library(name)
    for engine, launched in (("mpi", found.command(4, *command)), ("local", [sys.executable, *command])):
        subprocess.run(
            [*launched, "--engine", engine, "--out", engine],
            env=found.environment(),
            cwd=tmp_path,
            check=True,
            timeout=LIMIT_S,
        )
    there, here = (load_file(tmp_path / engine / "weights.safetensors") for engine in ("mpi", "local"))
    for tensor in here:
        np.testing.assert_array_equal(there[tensor], here[tensor])


@pytest.mark.takes("two processes of a job")
def test_a_closed_engine_leaves_no_copies_of_arguments_on_other_ranks() -> None:
    code = """
import numpy as np
from chimera.core import call
from chimera.engines.mpi import Mpi

class Worker:
    def spin(self):
        while True:
            call.current().alive()
    def echo(self, value):
        return value
    def copies(self):
        return len(call.current().current.rank.store._copies)

with Mpi() as engine:
    spinning, waiting = engine.spawn(Worker), engine.spawn(Worker)
    results = [waiting.echo(spinning.spin()), waiting.echo(engine.put(np.zeros(10_000, np.float32)))]
with Mpi() as engine:
    print(engine.get(engine.spawn(Worker).copies()))
"""
    job = run("mpich", 2, "-c", code)
    assert (job.returncode, job.stdout.split()) == (0, ["0"]), job.stdout + job.stderr

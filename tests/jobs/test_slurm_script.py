"""Options and batch scripts of jobs on Slurm: strict values, and what a script does when it is signalled. Without Slurm."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.jobs.slurm_kit import until

from chimera.core.errors import ConfigurationError
from chimera.jobs.slurm.options import UNLIMITED, SlurmOptions, read_options, time_text
from chimera.jobs.slurm.script import Launch, array_script, job_script, launch_of, options_in

ATTACK = "a1 \n\r\t\"'`$();&|\\%#=-/.\u2028é\x00"
ONE = Launch(mpi=False, ranks=1, cpus=2)
HOME = Path("/shared/jobs/1")
TRAIN = """#!{python}
import pathlib, signal, sys
run = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
def stop(number, _):
    if {checkpoint}:
        (run / "checkpoints").mkdir(parents=True, exist_ok=True)
        (run / "checkpoints" / "round-1").touch()
    sys.exit(143)
if {code}:
    sys.exit({code})
for number in (signal.SIGUSR1, signal.SIGTERM):
    signal.signal(number, stop)
pathlib.Path("ready").touch()
signal.pause()
"""


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30m", 1800),
        ("2h", 7200),
        ("1d", 86400),
        ("1d12h", 129600),
        ("1d-12h", 129600),
        ("1h30m", 5400),
        ("90s", 90),
        ("30", 1800),  # Slurm's forms: minutes, minutes:seconds, hours:minutes:seconds, days-hours, ...
        ("30:15", 1815),
        ("1:30:00", 5400),
        ("1-12", 129600),
        ("1-12:30", 131400),
        ("1-12:30:15", 131415),
        ("unlimited", UNLIMITED),
    ],
)
def test_a_time_is_given_in_units_or_in_slurms_forms(text: str, seconds: int) -> None:
    assert read_options(f"time={text}").time_s == seconds


def test_options_are_read_from_a_text_or_a_mapping() -> None:
    text = (
        "partition=short,account=lab-1,qos=high,constraint=a100&nvme,time=2h,nodes=2,tasks=5,cpus=8,memory=16G,gpus=a100:2,"
        "array_limit=4,lead=5m"
    )
    options = read_options(text)
    assert options == read_options(dict(part.split("=") for part in text.split(",")))
    assert (options.nodes, options.tasks, options.cpus, options.lead) == (2, 5, 8, 300)
    assert read_options("") == SlurmOptions()
    assert read_options("time=1m").lead == 30  # half of the limit, if that is shorter than the default
    assert time_text(131415) == "1-12:30:15"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("partion=short", "--slurm has no key 'partion'; did you mean 'partition'? known: account, array_limit, "),
        ("partition", "write KEY=VALUE,KEY=VALUE"),
        ("partition=short,,nodes=2", "write KEY=VALUE,KEY=VALUE"),
        ("nodes=2,nodes=3", "--slurm gives 'nodes' twice"),
        ("nodes=0", "nodes must be a number from 1 to 999999, not '0'"),
        ("cpus=two", "cpus must be a number"),
        ("time=soon", "time must be a time limit such as 30m, 2h, 1d-12h, or in Slurm's form 1-12:00:00, not 'soon'"),
        ("time=0", "time must be"),  # no limit, for Slurm
        ("time=30m,lead=1h", "lead (3600 s) must be shorter than the time limit (1800 s)"),
        ("lead=1d", "lead must be a duration such as 60s or 5m, at most 65535 s"),
        ("memory=8GB", "memory must be an amount of memory"),
        ("gpus=a100", "gpus must be a number of GPUs"),
        ("partition=a b", "partition must be the name of a partition"),
        ("partition=$(id)", "partition must be the name of a partition"),
        ("partition=x\n#SBATCH --uid=0", "partition must be the name of a partition, not 'x\\n#SBATCH --uid=0'"),
        ("qos=a;rm", "qos must be"),
        ('account=a"b', "account must be"),
        ("constraint=a&&b", "constraint must be features of nodes joined by & or |"),
        ("partition=-x", "partition must be"),
        ("nodes=٣", "nodes must be"),
    ],
)
def test_other_values_are_refused_with_what_is_allowed(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)) as error:
        read_options(text)
    assert "\n" not in str(error.value)


@settings(max_examples=30)
@given(
    name=st.text(ATTACK, max_size=80),
    value=st.text(ATTACK, max_size=12),
    key=st.sampled_from(["partition", "constraint", "gpus", "memory"]),
)
def test_no_text_of_a_user_adds_a_line_or_an_option_to_the_script(name: str, value: str, key: str) -> None:
    try:
        options = read_options({key: value})
    except ConfigurationError:
        options = SlurmOptions()
    plain = job_script(HOME, "digits", SlurmOptions(), ONE).splitlines()
    lines = job_script(HOME, name, options, ONE).splitlines()
    added = set(lines) - set(plain)
    assert len(lines) <= len(plain) + 1
    assert all(re.fullmatch(r'#SBATCH --[a-z-]+="?[\w.+:&|-]+"?', line, re.ASCII) for line in added)


@pytest.mark.parametrize("folder", ["/a\n#SBATCH --uid=0", '/a"b', "/a$b", "/a%j", "/a`b`", "/a\\b", "/a'b", "/a;b"])
def test_a_folder_that_a_script_cannot_contain_is_refused(folder: str) -> None:
    with pytest.raises(ConfigurationError, match="has a character that a batch script of Slurm cannot contain"):
        job_script(Path(folder), "digits", SlurmOptions(), ONE)


def test_scripts_are_valid_and_set_what_a_job_requests() -> None:
    options = read_options("partition=short,time=30m,nodes=2,memory=8G,gpus=1,lead=2m")
    mpi = Launch(mpi=True, ranks=3, cpus=4)
    job = job_script(Path("/shared/my jobs/1"), "fed avg; rm -rf", options, mpi)
    array = array_script(HOME, HOME.parent, ["lr=0.1--seed=1", "it's"], "grid", read_options("array_limit=1"), ONE)
    for script in (job, array):
        assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    for line in (
        *("job-name=fed-avg-rm--rf", "partition=short", "time=0-00:30:00", "nodes=2", "ntasks=3", "cpus-per-task=4"),
        *("mem=8G", "gres=gpu:1", 'output="/shared/my jobs/1/log"', "open-mode=append", "requeue", "signal=B:USR1@120"),
    ):
        assert f"#SBATCH --{line}\n" in job
    assert f"\nsrun --ntasks=3 --cpus-per-task=4 --kill-on-bad-exit=1 {sys.executable} -m chimera train " in job
    assert " --engine mpi &\n" in job
    assert "#SBATCH --array=0-1%1\n" in array
    assert {"partition", "time", "signal", "open-mode"} <= set(options_in(job))


@pytest.mark.parametrize(
    ("engine", "text", "launch"),
    [
        ("", "", Launch(mpi=False, ranks=1, cpus=4)),  # local: a processor for each worker
        ("local", "cpus=2", Launch(mpi=False, ranks=1, cpus=2)),
        ("simulated", "", Launch(mpi=False, ranks=1, cpus=1)),
        ("", "nodes=2", Launch(mpi=True, ranks=5, cpus=1)),
        ("mpi", "", Launch(mpi=True, ranks=5, cpus=1)),
        ("mpi", "nodes=8,cpus=2", Launch(mpi=True, ranks=8, cpus=2)),
        ("mpi", "nodes=2,tasks=3", Launch(mpi=True, ranks=3, cpus=1)),
        ("local", "nodes=2", "nodes=2 needs the engine mpi, and the experiment has engine 'local'"),
        ("simulated", "nodes=3", "nodes=3 needs the engine mpi, and the experiment has engine 'simulated'"),
        ("", "tasks=2", "tasks=2 needs the engine mpi"),
        ("mpi", "nodes=3,tasks=2", "tasks must be at least the number of nodes, 3, not 2"),
    ],
)
def test_the_engine_and_the_nodes_decide_how_a_run_is_started(engine: str, text: str, launch: Launch | str) -> None:
    tables = {"engine": {"name": engine}} if engine else {}
    if isinstance(launch, Launch):
        assert launch_of(tables, 4, read_options(text)) == launch
        return
    with pytest.raises(ConfigurationError, match=launch):
        launch_of(tables, 4, read_options(text))


class Script:
    """A batch script, run by bash, whose ``chimera train`` and ``scontrol`` are replaced by short programs."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home, self._monkeypatch = folder / "job", monkeypatch
        (self.home / "code").mkdir(parents=True)
        self._programs = folder / "programs"
        self._programs.mkdir()
        self.program("scontrol", f'#!/bin/sh\necho "$@" >>{self.home}/requeued\n')

    def program(self, name: str, text: str) -> Path:
        (self._programs / name).write_text(text)
        (self._programs / name).chmod(0o755)
        return self._programs / name

    def run(self, *signals: int, code: int = 0, checkpoint: bool = True) -> tuple[int, str]:
        """Run the script, send signals to its group once training has begun; return its exit code and its output."""
        train = self.program("train", TRAIN.format(python=sys.executable, code=code, checkpoint=checkpoint))
        with self._monkeypatch.context() as patch:
            patch.setattr(sys, "executable", str(train))
            script = job_script(self.home, "digits", SlurmOptions(), ONE)
        ready = self.home / "code" / "ready"
        ready.unlink(missing_ok=True)
        path = f"{self._programs}:{os.environ['PATH']}"
        process = subprocess.Popen(
            ["bash", "-c", script], env={"PATH": path, "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1"},
            stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        if signals:
            until(lambda: ready.exists() or process.poll() is not None, 30.0)
        for number in signals:  # Slurm sends SIGUSR1 to the script, and SIGTERM to all processes
            (os.kill if number == signal.SIGUSR1 else os.killpg)(process.pid, number)
        _, errors = process.communicate(timeout=30)
        return process.returncode, errors

    @property
    def requeued(self) -> str:
        file = self.home / "requeued"
        return file.read_text() if file.exists() else ""

    @property
    def marks(self) -> list[str]:
        return [re.sub(r"[0-9]{9,}", "TIME", line) for line in (self.home / "attempts").read_text().splitlines()]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    return Script(tmp_path, monkeypatch)


def test_a_script_records_its_start_and_its_exit_code(script: Script) -> None:
    assert script.run(code=3) == (3, "")
    assert script.marks == ["start 7 0 TIME n1", "end 7 0 TIME 3"]
    assert not script.requeued


def test_a_script_forwards_the_signal_before_the_time_limit_and_requeues_the_job(script: Script) -> None:
    assert script.run(signal.SIGUSR1) == (143, "")
    assert script.requeued == "requeue 7\n"
    assert script.marks[-1] == "end 7 0 TIME 143"


def test_a_script_does_not_requeue_a_job_that_slurm_ends(script: Script) -> None:
    assert script.run(signal.SIGTERM) == (143, "")
    assert not script.requeued


def test_a_cancelled_job_does_not_train_again(script: Script) -> None:
    (script.home / "cancelled").touch()
    assert script.run() == (143, "")
    assert not (script.home / "attempts").exists()


def test_a_job_without_progress_is_not_requeued_for_ever(script: Script) -> None:
    (script.home / "stalled").write_text("7\n" * 3)
    assert script.run(signal.SIGUSR1, checkpoint=False) == (143, "")
    assert script.requeued == "requeue 7\n"
    code, errors = script.run(signal.SIGUSR1, checkpoint=False)
    assert code == 143
    assert errors.startswith("error: no new checkpoint in 5 attempts: use a longer time limit")
    assert script.requeued == "requeue 7\n"
    assert script.run(signal.SIGUSR1) == (143, "")  # with a checkpoint, the count starts again
    assert script.requeued == "requeue 7\n" * 2


def test_a_refused_requeue_is_an_error_in_the_log(script: Script) -> None:
    script.program("scontrol", "#!/bin/sh\nexit 1\n")
    code, errors = script.run(signal.SIGUSR1)
    assert code == 143
    assert errors == "error: Slurm does not requeue the job; submitted again, it resumes from its checkpoint\n"

"""States, progress and commands of jobs on Slurm, from files and rows. Without Slurm."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.jobs.cluster_kit import experiment
from typer.testing import CliRunner

from chimera.cli.main import app
from chimera.core.errors import ConflictError, UnavailableError
from chimera.jobs.client.handle import client_of, submit
from chimera.jobs.slurm.attempts import Attempts, Mark, read_attempts
from chimera.jobs.slurm.client import SlurmClient
from chimera.jobs.slurm.commands import QueueRow, accounted_state
from chimera.jobs.slurm.folder import Ended, Record, SlurmFolder, SlurmJobFolder
from chimera.jobs.slurm.rows import Queue, confirmed
from chimera.jobs.slurm.states import CONFIRM_S, Found, state_of, state_without_number, state_without_slurm
from chimera.jobs.slurm.updates import RunLimits, RunUpdates, last_fraction
from chimera.jobs.store.records import Submission
from chimera.jobs.store.states import State
from chimera.training.progress.callback import Event, Progress

LIMITS = RunLimits({"rounds": 10})
STARTED, RETURNED, FAILED, KILLED = (
    Attempts(1, Mark(kind, "7", 5.0, value))
    for kind, value in (("start", "n1"), ("end", "0"), ("end", "2"), ("end", "137"))
)


def listed(state: str, reason: str = "None") -> QueueRow:
    return QueueRow("7", state, "n1", reason)


@pytest.mark.parametrize(
    ("row", "attempts", "given", "found"),
    [
        (listed("PENDING", "Resources"), Attempts(), {}, Found(State.QUEUED, "Slurm job 7 waits: Resources")),
        (listed("PENDING", "BeginTime"), FAILED, {}, Found(State.QUEUED, "Slurm job 7 waits: BeginTime")),
        (listed("CONFIGURING"), Attempts(), {}, Found(State.RUNNING, "Slurm job 7 on n1")),
        (listed("RUNNING"), STARTED, {}, Found(State.RUNNING, "Slurm job 7 on n1")),
        (listed("COMPLETING"), RETURNED, {}, Found(State.DONE)),
        (listed("COMPLETED"), RETURNED, {}, Found(State.DONE)),
        (listed("CANCELLED"), STARTED, {}, Found(State.CANCELLED)),
        (listed("RUNNING"), STARTED, {"cancelled": True}, Found(State.CANCELLED)),
        (listed("FAILED"), FAILED, {"error": "no space"}, Found(State.FAILED, "Slurm job 7: no space")),
        (
            *(listed("FAILED"), FAILED, {}),
            Found(State.FAILED, "Slurm job 7: its script ended with exit code 2"),
        ),
        (
            *(listed("TIMEOUT"), STARTED, {}),
            Found(State.FAILED, "Slurm job 7: it reached its time limit; a retry resumes from its checkpoint"),
        ),
        (None, RETURNED, {}, Found(State.DONE)),
        (
            *(listed("FAILED"), KILLED, {}),
            Found(
                State.FAILED,
                "Slurm job 7: its process was killed (exit code 137), usually because the node had too little memory: request "
                "more (#SBATCH --mem), then run it again",
            ),
        ),
        (None, FAILED, {"error": "no space"}, Found(State.FAILED, "Slurm job 7: no space")),
        (None, STARTED, {"accounted": "CANCELLED"}, Found(State.CANCELLED)),
        (
            *(None, STARTED, {"accounted": "NODE_FAIL"}),
            Found(State.FAILED, "Slurm job 7: a node failed; a retry resumes from its checkpoint"),
        ),
        (
            *(None, STARTED, {}),
            Found(
                State.FAILED, "Slurm job 7 has ended without a result: Slurm does not list it any more", certain=False
            ),
        ),
    ],
)
def test_the_state_follows_from_slurms_queue_and_the_lines_of_the_script(
    row: QueueRow | None, attempts: Attempts, given: dict[str, object], found: Found
) -> None:
    assert state_of("7", attempts, row, **{"cancelled": False, "error": "", **given}) == found  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("waited_s", "problem", "cancelled", "state"),
    [
        (0.0, "", False, State.QUEUED),
        (0.0, "", True, State.CANCELLED),
        (CONFIRM_S, "no answer", False, State.QUEUED),
        (CONFIRM_S, "", False, State.FAILED),
    ],
)
def test_a_job_that_slurm_has_not_confirmed_fails_only_when_slurm_answers_without_it_for_long(
    waited_s: float, problem: str, cancelled: bool, state: State
) -> None:
    found = state_without_number(waited_s, problem, cancelled=cancelled)
    assert (found.state, found.certain) == (state, state == State.CANCELLED)


@pytest.mark.parametrize(
    ("queue", "lines", "number"),
    [
        ("no answer", "", ""),
        ({"8": QueueRow("8", "PENDING", "", "None", "chimera-other")}, "", ""),
        ({"8": QueueRow("8", "PENDING", "", "None", "chimera-1")}, "", "8"),
        ({}, "start 7 0 100 n1\nend 7 0 110 1\n", ""),  # of the submission before
        ("no answer", "start 7 0 100 n1\nend 7 0 110 1\nstart 8 0 120 n1\n", "8"),
    ],
)
def test_the_number_of_an_unconfirmed_job_comes_from_the_queue_or_from_the_lines_of_the_script(
    tmp_path: Path, queue: Queue, lines: str, number: str
) -> None:
    home = SlurmJobFolder(tmp_path)
    home.write_record(Record(slurm="", limits=LIMITS, submitted_s=1.0, since_s=2.0, mark="chimera-1", earlier="7"))
    (tmp_path / "attempts").write_text(lines)
    assert confirmed(home, queue).slurm == number
    assert home.record().slurm == number


def test_lines_of_an_earlier_submission_do_not_count() -> None:
    assert state_of("8", RETURNED, None, cancelled=False, error="").state == State.FAILED
    assert state_without_slurm("8", RETURNED, "no answer", cancelled=False) == (State.QUEUED, "no answer", False)
    assert state_without_slurm("7", STARTED, "no answer", cancelled=False) == (State.RUNNING, "no answer", False)
    assert state_without_slurm("7", RETURNED, "no answer", cancelled=False) == Found(State.DONE)


def test_the_state_of_a_job_that_a_user_cancelled_is_read_from_the_accounting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accounting = tmp_path / "sacct"
    accounting.write_text("#!/bin/sh\necho NODE_FAIL\necho 'CANCELLED by 1000'\n")
    accounting.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert accounted_state("7") == "CANCELLED"


def test_follow_shows_the_whole_log_of_an_ended_job_also_its_incomplete_last_line(tmp_path: Path) -> None:
    folder = SlurmFolder(tmp_path)
    home = folder.new_job()
    home.write_submission(Submission(name="digits", user="me"))
    ended = Ended(State.FAILED, "killed", 3.0)
    home.write_record(Record(slurm="7", limits=LIMITS, submitted_s=1.0, since_s=2.0, ended=ended))
    lines = [f"line {number:07}" for number in range(200_000)]  # 2.6 MB; one read returns at most 1 MiB
    home.log.write_text("\n".join(lines))
    updates = list(SlurmClient(folder).follow(home.path.name))
    assert [each["log"] for each in updates if "log" in each] == lines
    assert updates[-1]["job"]["state"] == State.FAILED


def test_damaged_and_incomplete_lines_of_a_script_are_skipped(tmp_path: Path) -> None:
    file = tmp_path / "attempts"
    assert read_attempts(file) == Attempts()
    file.write_bytes(b"start 7 0 100 n[1-2]\nsome text\nend 7 0 soon 1\n\xff\xfe\nend 7 0 120 0\nstart 7 1 13")
    assert read_attempts(file) == Attempts(1, Mark("end", "7", 120.0, "0"))


def row(number: int, **more: float) -> bytes:
    counters = {"epoch": number / 4, "samples": 32 * number, "seconds": 0.1, "bytes_up": 1, "bytes_down": 2}
    return msgspec.json.encode({"round": number, **counters, **more}) + b"\n"


def test_progress_and_events_are_read_from_the_run_also_after_it_resumed_from_a_checkpoint(tmp_path: Path) -> None:
    updates, metrics = RunUpdates(tmp_path, LIMITS), tmp_path / "metrics.jsonl"
    assert updates.new() == []
    assert updates.begins() is None
    metrics.write_bytes(row(1, train_loss=2.0) + row(2, accuracy=0.5) + row(3)[:9])
    begin = updates.begins()
    assert begin is not None
    assert (begin.rounds, updates.begins()) == (0, None)
    first, second = updates.new()
    assert isinstance(first, Progress)
    assert isinstance(second, Progress)
    assert (first.fraction, first.loss, first.metrics) == (0.1, 2.0, {})
    assert (second.fraction, second.loss, second.metrics) == (0.2, None, {"accuracy": 0.5})
    metrics.write_bytes(row(1, train_loss=2.0))  # resumed at round 1
    (tmp_path / "events.jsonl").write_bytes(msgspec.json.encode(Event("worker lost", 1.0, 1)) + b"\n{}\n")
    assert updates.new() == [Event("worker lost", 1.0, 1)]
    with metrics.open("ab") as file:
        file.write(row(2) + b"damaged\n")
    (again,) = updates.new()
    assert isinstance(again, Progress)
    assert (again.rounds, again.metrics) == (2, {"accuracy": 0.5})
    assert last_fraction(tmp_path, LIMITS) == 0.2
    assert last_fraction(tmp_path / "none", LIMITS) is None


def test_the_last_error_of_a_log_is_one_printable_line(tmp_path: Path) -> None:
    home = SlurmJobFolder(tmp_path)
    assert home.last_error() == ""
    home.log.write_bytes(b"error: first\nepoch 1\nerror: \x1b[31msecond\xff\nTraceback\n")
    assert home.last_error() == " [31msecond\ufffd"
    with home.log.open("ab") as log:
        log.write(b"attempt of Slurm job 8 on n1\nepoch 1\n")
    assert home.last_error() == ""  # an error of an earlier attempt is not the reason of this one


@pytest.fixture
def without_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with one job on Slurm, on a machine without Slurm."""
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    folder = SlurmFolder(tmp_path / "jobs")
    folder.create()
    home = folder.new_job()
    home.write_submission(Submission(name="digits", user="ada", experiment="[train]"))
    home.write_record(Record(slurm="7", limits=LIMITS, submitted_s=1.0, since_s=1.0))
    return folder.path


def test_without_slurm_each_command_reports_it_in_one_line(without_slurm: Path) -> None:
    def run(*words: str) -> tuple[int, str, str]:
        done = CliRunner().invoke(app, [*words, "--folder", str(without_slurm)])
        return done.exit_code, done.stdout, done.stderr

    code, shown, errors = run("jobs", "--json")
    assert (code, errors) == (0, "")
    assert "'squeue' was not found on " in msgspec.json.decode(shown)[0]["reason"]
    for words in (["cancel", "1"], ["retry", "1"], ["follow", "1"]):
        code, shown, errors = run(*words)
        assert (code, shown) == (2, "")
        assert "was not found on" in errors
        assert "run this on a machine with Slurm's commands, such as the login node" in errors
        assert errors.count("\n") == 1
    code, _, errors = run("cancel", "../1")
    assert (code, errors) == (2, f"error: there is no job '../1' in {without_slurm}\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["submit", "--slurm", "partition=short"], "'sbatch' was not found on "),
        (["submit", "--slurm", "partion=short"], "--slurm has no key 'partion'; did you mean 'partition'?"),
        (["submit", "--slurm", "", "--folder", "https://host:1"], "jobs on Slurm have their files in a folder"),
        (["compare", "--vary", "codec=identity,int8", "--slurm", ""], "'sbatch' was not found on "),
        (["compare", "--vary", "codec=identity", "--slurm", "", "--jobs", "2"], "use --slurm array_limit=N"),
    ],
)
def test_a_mistake_creates_nothing(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    file = experiment(tmp_path)
    done = CliRunner().invoke(app, [words[0], str(file), *words[1:]])
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == [file]


def test_a_folder_has_one_kind_of_cluster(without_slurm: Path, tmp_path: Path) -> None:
    for words in (["cluster", "up"], ["cluster", "down"]):
        done = CliRunner().invoke(app, [*words, "--folder", str(without_slurm)])
        assert done.exit_code == 2
        assert f"the jobs in {without_slurm} run on Slurm" in done.stderr
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "token").touch()
    with pytest.raises(ValueError, match="is the folder of a cluster with its own workers"):
        SlurmFolder(tmp_path / "other").create()


@pytest.mark.parametrize("name", ["record.json", "submission.json"])
def test_a_damaged_file_of_a_job_does_not_hide_the_others(name: str, without_slurm: Path) -> None:
    home = SlurmFolder(without_slurm).new_job()
    home.write_submission(Submission(name="second", user="ada", experiment="[train]"))
    home.write_record(Record(slurm="8", limits=LIMITS, submitted_s=2.0, since_s=2.0))
    damaged = without_slurm / "jobs" / "1" / name
    content = damaged.read_bytes()
    for size in (0, 1, len(content) - 1):
        damaged.write_bytes(content[:size])
        listed = CliRunner().invoke(app, ["jobs", "--json", "--folder", str(without_slurm)])
        assert listed.exit_code == 0, listed.output
        first, second = msgspec.json.decode(listed.stdout)
        assert (second["name"], second["state"]) == ("second", "queued")
        assert (first["job"], first["state"]) == ("1", "failed")
        assert first["reason"].startswith(f"job 1: {damaged} is damaged or cannot be read (")
        fetched = CliRunner().invoke(app, ["fetch", "1", "--folder", str(without_slurm)])
        assert (fetched.exit_code, fetched.stdout, fetched.stderr) == (2, "", f"error: {first['reason']}\n")


def test_two_commands_do_not_change_a_job_at_the_same_time(without_slurm: Path) -> None:
    """Two retries at once would submit the job twice, and one of them would run without a record."""
    with SlurmFolder(without_slurm).job("1").changing():
        for command in ("retry", "cancel"):
            done = CliRunner().invoke(app, [command, "1", "--folder", str(without_slurm)])
            assert (done.exit_code, done.stdout) == (1, "")
            assert done.stderr == "error: job 1: another command submits, cancels or retries it now\n"
    done = CliRunner().invoke(app, ["retry", "1", "--folder", str(without_slurm)])
    assert "was not found on" in done.stderr


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        ("echo sbatch: error: Unable to contact slurm controller '(connect failure)' >&2; exit 1", False),
        ("echo sbatch: error: Batch job submission failed: Socket timed out on send/recv operation >&2; exit 1", True),
        ("kill -9 $$", True),
        ("echo accepted", True),
    ],
)
def test_a_job_is_kept_if_slurm_may_have_accepted_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, kept: bool
) -> None:
    for name, body in (("sbatch", answer), ("squeue", "exit 0")):
        command = tmp_path / "bin" / name
        command.parent.mkdir(exist_ok=True)
        command.write_text(f"#!/bin/sh\n{body}\n")
        command.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin:/usr/bin")
    with pytest.raises(UnavailableError) as raised:
        submit(experiment(tmp_path), cluster=tmp_path / "jobs", slurm="")
    assert ("job 1: Slurm has not confirmed the submission" in str(raised.value)) == kept
    rows = [(row["job"], row["state"], row["reason"]) for row in client_of(tmp_path / "jobs").jobs()]
    assert rows == ([("1", "queued", "Slurm has not confirmed the submission yet")] if kept else [])
    if kept:
        with pytest.raises(UnavailableError, match="job 1, after which this one would run: Slurm has not confirmed"):
            submit(experiment(tmp_path), cluster=tmp_path / "jobs", slurm="", after="1")
        client = client_of(tmp_path / "jobs")
        client.cancel("1")
        assert client.job("1")["state"] == "cancelled"
        with pytest.raises(ConflictError, match=r"Slurm may still accept its last submission: retry it in [0-9]+ s"):
            client.retry("1")

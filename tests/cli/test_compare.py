"""Tests of ``chimera compare``: its output, its exit, and that no process is left."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import threading

import psutil
import pytest

from chimera.training.run.interrupt import ECHO_S
from terminal_kit import plain, shown_on

LIMIT_S = 120
STOPS = [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "ended by SIGTERM")]
TWO = ("--vary", "strategy=parameter-server,all-reduce")
LONG = ("--set", "train.rounds=1500", "--set", "train.evaluate_every=25")


@pytest.fixture
def guarded(start):
    """Return a function that starts the command, and kills it when the test takes too long."""
    timers = []

    def started(*arguments, **options):
        process = start("compare", *arguments, **options)
        timers.append(threading.Timer(LIMIT_S, process.kill))
        timers[-1].start()
        return process

    yield started
    for timer in timers:
        timer.cancel()


def cells_of(process):
    """Return the processes that the command has started."""
    return psutil.Process(process.pid).children(recursive=True)


def until(process, *wanted):
    """Read lines until each of the patterns was found."""
    left = set(wanted)
    for line in process.stdout:
        left -= {pattern for pattern in left if re.search(pattern, line)}
        if not left:
            return
    raise AssertionError(f"{left} never came: {process.stderr.read()}")


def alone(invoke, experiment, out, strategy):
    settings = (*LONG, "--set", f"strategy={strategy}")
    assert invoke("train", experiment, *settings, "--out", out, "--quiet").exit_code == 0
    return out


@pytest.mark.long
def test_piped_output_has_lines_for_each_cell_and_the_table(invoke, experiment, tmp_path):
    result = invoke("compare", experiment, *TWO, "--out", tmp_path / "out", "--jobs", 1)
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.output
    lines = result.stdout.splitlines()
    for name in ("parameter-server", "all-reduce"):
        told = [line.partition(": ")[2] for line in lines if line.startswith(f"{name}: ")]
        assert told[0] == "begins"
        assert told[-1] == "finished"
        assert any(line.startswith("round 3") and "accuracy" in line for line in told)
        assert (tmp_path / "out" / name / "report.html").is_file()
    head = next(i for i, line in enumerate(lines) if line.startswith("#  cell"))
    assert [line.split()[1] for line in lines[head + 1 : head + 3]] == ["parameter-server", "all-reduce"]
    assert lines[-1] == f"page: {tmp_path / 'out' / 'comparison.html'}"


@pytest.mark.long
def test_json_ends_stdout_with_one_object(invoke, experiment, tmp_path):
    result = invoke("compare", experiment, "--vary", "codec=identity", "--out", tmp_path / "out", "--json", "--quiet")
    assert (result.exit_code, result.stdout.count("\n"), result.stderr) == (0, 1, "")
    (row,) = json.loads(result.stdout)["rows"]
    assert row["rounds"] == 6
    assert row["metrics"].keys() >= {"loss", "accuracy"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no key varies: give values"),
        (["--vary", "codec"], "write KEY=VALUE,VALUE"),
        (["--vary", "codec=identity,zip"], "zip: unknown codec 'zip'; known: "),
        (["--vary", "strategy=all-reduce:shards=2"], "'all-reduce' has no option 'shards'"),
        (["--vary", "codec=identity,identity"], "are the same cell"),
        (["--vary", "codec=identity", "--jobs", "0"], "--jobs"),
        (["--vary", "codec=identity", "--repeat", "x"], "--repeat x: give a number of seeds"),
        (["--vary", "codec=identity", "--set", "train.epoch=3"], "[train] has no key 'epoch'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_configuration_error_is_one_line_on_stderr_and_exit_code_2(invoke, experiment, tmp_path, arguments, said):
    result = invoke("compare", experiment, "--json", "--out", tmp_path / "out", *arguments)
    assert said in result.stderr
    assert re.fullmatch(r"error: [^\n]+\n", result.stderr)
    assert (result.exit_code, result.stdout) == (2, "")
    assert not (tmp_path / "out").exists()


@pytest.mark.takes("each cell is a process that imports torch")
def test_a_failed_cell_is_reported_and_does_not_stop_the_others(invoke, experiment, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken_strategy.py").write_text(
        "from chimera.strategies.parameter_server import ParameterServer\n\n\n"
        "class Broken(ParameterServer):\n"
        "    def rounds(self, cluster):\n"
        "        raise ZeroDivisionError('nothing to divide\\nby')\n",
        encoding="utf-8",
    )
    vary = "strategy=broken_strategy.py:Broken,parameter-server,parameter-server:quorum=0.5"
    result = invoke("compare", experiment, "--vary", vary, "--out", "out", "--json")
    assert result.exit_code == 1, result.output
    broken, *others = json.loads(result.stdout)["rows"]
    assert broken["state"] == "failed"
    assert broken["error"].startswith("ZeroDivisionError: nothing to divide (its output: ")
    assert "error: the run broken_strategy.py:Broken failed: ZeroDivisionError" in result.stderr
    assert "Traceback" not in result.stderr
    assert "Traceback" in next((tmp_path / "out").glob("*.log")).read_text()
    assert [row["state"] for row in others] == ["finished"] * 2
    page = (tmp_path / "out" / "comparison.html").read_text()
    assert "ZeroDivisionError: nothing to divide" in page


@pytest.mark.long
@pytest.mark.parametrize(("number", "code", "why"), STOPS)
def test_a_signal_checkpoints_all_cells_and_resume_gives_the_same_result(
    guarded, invoke, experiment, tmp_path, number, code, why
):
    process = guarded(experiment, *TWO, *LONG, "--out", "out dir", "--jobs", 2)
    until(process, r"^parameter-server: round [1-9]", r"^all-reduce: round [1-9]")
    cells = cells_of(process)
    for cell in cells if number == signal.SIGTERM else ():  # a scheduler may signal all processes
        cell.send_signal(number)
    process.send_signal(number)
    _, stderr = process.communicate()
    assert process.returncode == code, stderr
    assert f"{why}; unfinished runs have their checkpoints" in stderr
    assert "Traceback" not in stderr
    assert not [cell for cell in cells if cell.is_running() and cell.status() != psutil.STATUS_ZOMBIE]
    for name in ("parameter-server", "all-reduce"):
        assert list((tmp_path / "out dir" / name / "checkpoints").iterdir())
    found = re.search(r"^to resume: (.+)$", stderr, re.MULTILINE)
    assert found
    assert found[1].endswith("--jobs 2 --out 'out dir' --resume")
    assert json.loads((tmp_path / "out dir" / "comparison.json").read_text())["rows"][0]["state"] == "interrupted"

    out = tmp_path / "out dir"
    result = invoke("compare", experiment, *TWO, *LONG, "--out", out, "--resume", "--quiet")
    assert result.exit_code == 0, result.output
    whole = alone(invoke, experiment, tmp_path / "alone", "parameter-server")
    assert (out / "parameter-server" / "weights.safetensors").read_bytes() == (
        whole / "weights.safetensors"
    ).read_bytes()


@pytest.mark.long
def test_a_killed_cell_is_failed_and_can_be_resumed(guarded, invoke, experiment, tmp_path):
    process = guarded(experiment, *TWO, *LONG, "--out", "out", "--jobs", 1)
    until(process, r"^parameter-server: round [1-9]")
    (victim,) = cells_of(process)
    victim.send_signal(signal.SIGKILL)
    stdout, stderr = process.communicate()
    assert process.returncode == 1, stderr
    assert "error: the run parameter-server failed: ended by SIGKILL" in stderr
    assert "all-reduce: finished" in stdout
    result = invoke("compare", experiment, *TWO, *LONG, "--out", tmp_path / "out", "--resume", "--json")
    assert result.exit_code == 0, result.output
    assert "all-reduce: begins" not in result.stderr
    whole = alone(invoke, experiment, tmp_path / "alone", "parameter-server")
    for name in ("metrics.jsonl", "weights.safetensors"):
        assert (tmp_path / "out" / "parameter-server" / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.long
@pytest.mark.parametrize("engine", ["simulated", "local"])
def test_cells_exit_with_the_command(guarded, experiment, engine):
    endless = ("--set", "train.rounds=100000000", "--set", "train.evaluate_every=50", "--set", f"engine={engine}")
    process = guarded(experiment, *TWO, *endless, "--out", "out", "--jobs", 1)
    until(process, r"^parameter-server: round [1-9]")
    cells = cells_of(process)
    assert cells
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(cells, timeout=LIMIT_S / 4)
    assert not alive


@pytest.mark.long
@pytest.mark.parametrize(("number", "code", "why"), STOPS)
def test_a_second_signal_kills_an_unresponsive_cell(guarded, experiment, tmp_path, number, code, why):
    (tmp_path / "deaf_strategy.py").write_text(
        "import time\n\n"
        "from chimera.strategies.parameter_server import ParameterServer\n\n\n"
        "class Deaf(ParameterServer):\n"
        "    def rounds(self, cluster):\n"
        "        while True:\n"
        "            time.sleep(1)\n",
        encoding="utf-8",
    )
    process = guarded(experiment, "--vary", "strategy=deaf_strategy.py:Deaf", "--out", "out")
    until(process, r"Deaf: round 0")
    (cell,) = cells_of(process)
    process.send_signal(signal.SIGTERM)
    until(process, "interrupted: the runs under way")
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(2 * ECHO_S)  # a scheduler's signal that follows at once counts as the first
    process.send_signal(number)
    _, stderr = process.communicate()
    assert process.returncode == code
    assert why in stderr
    assert "Traceback" not in stderr
    assert not cell.is_running()


@pytest.mark.long
def test_terminal_output_has_a_line_for_each_cell_and_a_final_table(guarded, experiment):
    terminal, program = pty.openpty()
    process = guarded(experiment, *TWO, "--out", "out", "--jobs", 1, stdout=program, stderr=subprocess.PIPE)
    os.close(program)
    shown = shown_on(terminal)
    _, stderr = process.communicate()
    assert (process.returncode, stderr) == (0, "")
    text = plain(shown)
    assert "running" in text
    assert "waiting" in text
    assert "comparison.html" in text.splitlines()[-1]
    assert shown.count(b"\x1b[?25l") == shown.count(b"\x1b[?25h") == 1  # the cursor comes back

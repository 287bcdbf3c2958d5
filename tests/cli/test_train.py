"""Tests of ``chimera train``: its output and exit codes."""

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from terminal_kit import plain, shown_on

KEYS = {
    "strategy",
    "codec",
    "engine",
    "workers",
    "rounds",
    "epochs",
    "samples",
    "seconds",
    "samples_per_second",
    "bytes_up",
    "bytes_down",
    "metrics",
    "lost_workers",
    "stopped_by",
    "run_dir",
}
LIMIT_S = 120


def test_json_ends_stdout_with_one_object(invoke, experiment, tmp_path):
    result = invoke("train", experiment, "--json", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("\n") == 1
    summary = json.loads(result.stdout)
    assert summary.keys() >= KEYS
    assert summary["rounds"] == 6
    assert summary["stopped_by"] == "rounds"
    assert summary["metrics"].keys() >= {"loss", "accuracy"}
    assert "round 6" in result.stderr
    assert Path(summary["run_dir"]).is_relative_to(tmp_path / "out")
    assert (Path(summary["run_dir"]) / "report.html").is_file()


@pytest.mark.long
def test_child_and_user_output_does_not_reach_stdout_with_json(start, experiment, tmp_path):
    (tmp_path / "noisy.py").write_text(
        "import torch\n\n\ndef build():\n    print('noise')\n    return torch.nn.Linear(64, 10)\n", encoding="utf-8"
    )
    text = experiment.read_text().replace('"logistic-regression"', '"noisy.py:build"').replace('"simulated"', '"local"')
    experiment.write_text(text, encoding="utf-8")
    process = start("train", experiment, "--json", "--out", "out")
    stdout, stderr = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, stderr
    assert "noise" in stderr
    assert json.loads(stdout)["engine"] == "local"


def test_the_command_line_overrides_the_file_and_later_settings_win(invoke, experiment, tmp_path):
    experiment.write_text(experiment.read_text().replace('"simulated"', '"local"'), encoding="utf-8")
    result = invoke(
        *("train", experiment, "--json", "--quiet", "--out", tmp_path / "out", "--engine", "simulated", "--workers", 3),
        *("--set", "train.rounds=4", "--set", "train.rounds=2", "--set", "strategy.shards=2"),
    )
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert (summary["engine"], summary["workers"], summary["rounds"]) == ("simulated", 3, 2)


def test_faults_are_injected_and_saved_in_the_experiment(invoke, experiment, tmp_path):
    faults = ["--fault", "kill worker 1 at step 2", "--fault", "slow worker 0 by 2 for 1 s at step 3"]
    result = invoke("train", experiment, *faults, "--json", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["lost_workers"] == 1
    again = invoke("train", tmp_path / "out" / "experiment.toml", "--json", "--out", tmp_path / "again")
    assert json.loads(again.stdout)["lost_workers"] == 1
    assert (tmp_path / "again" / "events.jsonl").read_text() == (tmp_path / "out" / "events.jsonl").read_text()


@pytest.mark.parametrize(
    ("strategy", "line"),
    [
        ("parameter-server", "optimizer: adam (lr 0.001) on servers"),
        ("all-reduce", "optimizer: adam (lr 0.001) on workers"),
        ("fed-avg", "optimizer: adam (lr 0.001) on workers · server: sgd (lr 1)"),
        ("diloco", "optimizer: adamw (lr 0.001) on workers · server: sgd (lr 0.7, momentum 0.9, nesterov)"),
    ],
)
def test_a_line_states_which_optimizer_steps_where(invoke, experiment, tmp_path, strategy, line):
    options = "train", experiment, "--set", f"strategy={strategy}", "--set", "train.rounds=1"
    shown = invoke(*options, "--out", tmp_path / "out")
    assert shown.exit_code == 0, shown.output
    assert [each for each in shown.stdout.splitlines() if each.startswith("optimizer:")] == [line]
    assert "optimizer:" not in invoke(*options, "--quiet", "--out", tmp_path / "quiet").output
    assert "optimizer:" not in invoke(*options, "--json", "--out", tmp_path / "json").stdout


def test_piped_output_has_one_line_for_each_evaluation(invoke, experiment, tmp_path):
    result = invoke("train", experiment, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("round ")] == ["3", "6"]
    assert "\x1b" not in result.stdout
    report = next(line for line in lines if line.startswith("report:")).split()[1]
    assert Path(report).is_file()


def test_quiet_prints_nothing(invoke, experiment, tmp_path):
    result = invoke("train", experiment, "--quiet", "--out", tmp_path / "out")
    assert (result.exit_code, result.output) == (0, "")


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "train.epoch=3"], "[train] has no key 'epoch'; did you mean 'epochs'?"),
        (["--set", "train.workers=many"], "[train] workers = 'many' cannot be used: Expected int, got str"),
        (["--set", "train.optimizer.lr=0,01"], "the optimizer 'adam', option 'lr': '0,01' is not a number: write 0.01"),
        (["--set", "train.optimizer.lr=fast"], "option 'lr': 'fast' is not a number: give a number, such as 0.01"),
        (
            ["--set", "strategy=fed-nova", "--set", "train.optimizer.momentum=0,9"],
            "fed-nova knows the gradient weight of sgd only",
        ),
        (["--set", "strategy"], "--set 'strategy': write KEY=VALUE"),
        (["--set", "strategy=gossip-girl"], "unknown strategy 'gossip-girl'; did you mean 'gossip-sgd'? known: "),
        (["--set", "strategy.shard=2"], "has no option 'shard'; did you mean 'shards'? its options: "),
        (["--set", "strategy.shards=two"], "option 'shards': 'two' cannot be used"),
        (["--set", "data=digitz"], "'digitz'; did you mean 'digits'? known: "),
        (["--set", "model=mpl"], "unknown model 'mpl'; did you mean 'mlp'? known: "),
        (["--set", "model=absent.py:build"], "there is no file "),
        (["--set", "codec=zip"], "unknown codec 'zip'; known: "),
        (["--set", "partition=fair"], "'fair'; known: "),
        (["--set", "train.optimizer=madam"], "'madam'"),
        (["--engine", "warp"], "unknown engine 'warp'; known: "),
        (["--workers", "100000"], "100,000 workers cannot share"),
        (["--workers", "0"], "--workers 0: give a number of at least 1, or URLs separated by commas"),
        (["--workers", "http://127.0.0.1:5001"], "workers at URLs need the engine http: --engine http"),
        (["--fault", "maim worker 2 at step 3"], "is not a fault: write it like"),
        (["--wrokers", "2"], "--wrokers"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_configuration_error_is_one_line_on_stderr_and_exit_code_2(invoke, experiment, tmp_path, arguments, said):
    result = invoke("train", experiment, "--json", "--out", tmp_path / "out", *arguments)
    assert said in result.stderr
    assert re.fullmatch(r"error: [^\n]+\n", result.stderr)
    assert (result.exit_code, result.stdout) == (2, "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[data\n", "broken.toml:1:6: not valid TOML"),
        ('model = "mlp"', "broken.toml: the table [data] is missing"),
        ('data = "digits"\nmodel = "mlp"\n[trane]', "there is no table [trane]; did you mean 'train'?"),
    ],
)
def test_an_invalid_experiment_file_is_named_with_the_line(invoke, tmp_path, text, said):
    (tmp_path / "broken.toml").write_text(text, encoding="utf-8")
    result = invoke("train", tmp_path / "broken.toml")
    assert said in result.stderr
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)


def test_a_missing_file_is_an_error(invoke):
    assert invoke("train", "absent.toml").exit_code == 2
    assert "EXPERIMENT.toml" in invoke("train").stderr


@pytest.mark.long
@pytest.mark.parametrize("engine", ["simulated", "local"])
def test_an_error_of_user_code_is_one_line_and_its_traceback(invoke, experiment, tmp_path, engine):
    (tmp_path / f"failing_{engine}.py").write_text(
        "import torch\n\n\n"
        "class Failing(torch.nn.Linear):\n"
        "    def forward(self, inputs):\n"
        "        if self.training:\n"
        "            raise ZeroDivisionError('nothing to divide')\n"
        "        return super().forward(inputs)\n\n\n"
        "def build():\n"
        "    return Failing(64, 10)\n",
        encoding="utf-8",
    )
    text = experiment.read_text().replace("logistic-regression", f"failing_{engine}.py:build")
    experiment.write_text(text, encoding="utf-8")
    result = invoke("train", experiment, "--quiet", "--engine", engine, "--out", tmp_path / "out")
    first, _, rest = result.stderr.partition("\n")
    assert result.exit_code == 1
    assert first.startswith("error: the run failed: ")
    for part in ("worker", "ZeroDivisionError", "nothing to divide"):
        assert part in first
    assert f"failing_{engine}.py" in rest
    assert "Traceback" in rest


@pytest.mark.parametrize(
    ("number", "code", "why"),
    [
        (signal.SIGINT, 130, "interrupted"),
        (signal.SIGTERM, 143, "ended by SIGTERM"),
        pytest.param(signal.SIGUSR1, 143, "ended by SIGUSR1", marks=pytest.mark.long),
    ],
)
@pytest.mark.takes("it starts a process that imports torch")
def test_a_signal_names_the_last_checkpoint_and_how_to_resume(start, experiment, number, code, why):
    process = start("train", experiment, "--out", "out dir", "--set", "train.rounds=100000000")
    assert process.stdout is not None
    limit = threading.Timer(LIMIT_S, process.kill)
    limit.start()
    try:
        begun = any(line.startswith("round ") for line in process.stdout)
        process.send_signal(number)
        _, stderr = process.communicate()
    finally:
        limit.cancel()
    assert begun, stderr
    assert process.returncode == code, stderr
    found = re.search(rf"^{why}; the last checkpoint is (.+)\nto resume: (.+)\n", stderr)
    assert found, stderr
    assert "Traceback" not in stderr
    assert (experiment.parent / found[1]).exists()
    assert found[2] == f"chimera train {experiment} --set train.rounds=100000000 --out 'out dir' --resume"


@pytest.mark.long
def test_a_signal_while_the_engine_starts_ends_the_command(start, experiment):
    process = start("train", experiment, "--engine", "local", "--out", "out")
    assert process.stdout is not None
    assert process.stdout.readline()  # the title
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, stderr) == (143, "ended by SIGTERM before the first checkpoint\n")


@pytest.mark.long
def test_a_closed_pipe_does_not_end_the_run(start, experiment, tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    process = start("train", experiment, "--out", "out", stdout=writing)
    os.close(writing)
    _, stderr = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, stderr) == (0, "")
    assert list((tmp_path / "out").rglob("report.html"))


@pytest.mark.long
def test_closed_streams_do_not_end_the_run(experiment, tmp_path):
    arguments = f"train {shlex.quote(str(experiment))} --engine local --out out"
    command = f"{shlex.quote(sys.executable)} -m chimera {arguments} <&- >&- 2>&-"
    done = subprocess.run(["/bin/sh", "-c", command], cwd=tmp_path, timeout=LIMIT_S, check=False)
    assert done.returncode == 0
    assert (tmp_path / "out" / "report.html").is_file()


@pytest.mark.parametrize(
    "encoding",
    [
        {"PYTHONIOENCODING": "ascii"},
        pytest.param({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, marks=pytest.mark.long),
    ],
)
def test_a_terminal_of_ascii_shows_the_run(start, experiment, tmp_path, encoding):
    process = start("train", experiment, "--out", "out", env={**os.environ, **encoding})
    stdout, stderr = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, stderr) == (0, "")
    assert "training digits \\xb7 logistic-regression" in stdout


@pytest.mark.long
@pytest.mark.parametrize("engine", ["simulated", "local"])
def test_plain_lines_and_summary_mark_virtual_time(invoke, experiment, tmp_path, engine):
    faults = ["--fault", "kill worker 1 at step 2"] if engine == "simulated" else []
    result = invoke("train", experiment, "--engine", engine, *faults, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    lines = [line for line in result.stdout.splitlines() if re.search(r"\d (ms|s)\b", line)]
    assert len(lines) >= 3 + len(faults)
    for line in lines:
        assert bool(re.search(r"\d (ms|s) virtual\b", line)) == (engine == "simulated"), line
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["virtual_time"] == (engine == "simulated")


def test_quiet_prints_the_reason_of_a_failure(invoke, experiment, tmp_path):
    faults = ["--fault", "kill worker 0 at step 2", "--set", "train.on_worker_loss=stop"]
    result = invoke("train", experiment, "--quiet", *faults, "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")


@pytest.mark.long
def test_terminal_output_has_a_live_view_and_a_final_table(start, experiment):
    terminal, program = pty.openpty()
    process = start("train", experiment, "--out", "out", stdout=program, stderr=subprocess.PIPE)
    os.close(program)
    shown = shown_on(terminal)
    _, stderr = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, stderr) == (0, "")
    text = plain(shown)
    assert "2 running" in text
    assert "report.html" in text.splitlines()[-1]
    assert shown.count(b"\x1b[?25l") == shown.count(b"\x1b[?25h") == 1  # the cursor comes back


@pytest.mark.takes("each run is a process")
def test_a_shell_command_of_a_notebook_and_a_pipe_with_forced_colours_have_plain_lines(start, experiment, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as the kernel of a notebook sets it, and many services that run tests
    piped = start("train", experiment, "--engine", "simulated", "--out", "piped", stdout=subprocess.PIPE)
    shown = piped.communicate(timeout=LIMIT_S)[0]
    monkeypatch.setenv("PAGER", "cat")
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    terminal, program = pty.openpty()
    process = start("train", experiment, "--engine", "simulated", "--out", "cell", stdout=program, stderr=program)
    os.close(program)
    in_cell = shown_on(terminal).decode()
    assert process.wait(LIMIT_S) == 0
    for text in (shown, in_cell):
        assert "\x1b" not in text
        assert text.count("training ") == 1
        assert re.search(r"^report: .*report.html", text, re.MULTILINE)

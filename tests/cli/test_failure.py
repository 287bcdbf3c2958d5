"""Every class of error has its exit code and a one-line message."""

import errno
import shlex
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from chimera.cli.failure import exit_code_of
from chimera.cli.main import app
from chimera.core import errors
from chimera.core.engine import ENGINES
from chimera.core.errors import RunError


def tree(kind):
    return [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, kind)]


def made(kind):
    if kind is errors.UnknownNameError:
        return kind("strategy", "x", ["y"])
    if kind is errors.MissingExtraError:
        return kind("the engine 'ray'", "ray", "ray")
    return kind("something\nin two lines")


NO_RUN = (errors.ConflictError, errors.NoSpaceError, errors.UnavailableError)


@pytest.mark.parametrize("kind", tree(errors.ConfigurationError), ids=lambda kind: kind.__name__)
def test_a_configuration_error_exits_with_2(kind, capsys):
    assert exit_code_of(made(kind)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "kind", [k for k in tree(errors.RunError) if k not in (errors.ActorError, *NO_RUN)], ids=lambda kind: kind.__name__
)
def test_a_failed_run_exits_with_1(kind, capsys):
    assert exit_code_of(made(kind)) == 1
    assert capsys.readouterr().err == "error: the run failed: something in two lines\n"


@pytest.mark.parametrize("kind", NO_RUN, ids=lambda kind: kind.__name__)
def test_a_failed_request_exits_with_1(kind, capsys):
    assert exit_code_of(made(kind)) == 1
    assert capsys.readouterr().err == "error: something in two lines\n"


@pytest.mark.parametrize("module", ["chimera.cli.ranks", "typer", "chimera.cli.watch"])
def test_ctrl_c_during_the_imports_of_the_program_is_one_line(module):
    interrupts = f"""
import os, signal, sys

class Interrupts:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
from chimera.cli.start import main
main()
"""
    done = subprocess.run([sys.executable, "-c", interrupts, "list"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "error: interrupted\n")


def test_the_program_imports_nothing_before_it_can_report_ctrl_c():
    code = "import sys; known = set(sys.modules); import chimera.cli.start; print(*sorted(set(sys.modules) - known))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["__future__", "chimera", "chimera.cli", "chimera.cli.start", "chimera.version"]


def test_an_interrupt_exits_with_130(capsys):
    assert exit_code_of(KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == "error: interrupted\n"


@pytest.mark.parametrize("command", [("jobs",), ("cluster", "status"), ("new", "torch", "x")], ids=" ".join)
def test_a_deleted_current_folder_raises_a_one_line_error(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # which pytest leaves at the end
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    result = CliRunner().invoke(app, command)
    assert (result.exit_code, result.stderr) == (
        2,
        "error: the current folder no longer exists: change to another folder\n",
    )


@pytest.mark.parametrize("command", [("report",), ("cluster", "up", "--folder"), ("audit", "verify")], ids=" ".join)
def test_a_name_that_is_too_long_raises_a_one_line_error(command):
    result = CliRunner().invoke(app, [*command, "x" * 300])
    assert result.exit_code == 1
    assert "File name too long" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_full_disk_raises_a_one_line_error(capsys):
    assert exit_code_of(OSError(errno.ENOSPC, "No space left on device", "runs/x/weights")) == 1
    assert capsys.readouterr().err == "error: the run failed: [Errno 28] No space left on device: 'runs/x/weights'\n"


@pytest.mark.parametrize(("limit", "event"), [("-v 4000000", "Cannot allocate memory"), ("-f 20", "File too large")])
def test_a_limit_that_shared_memory_exceeds_raises_a_one_line_error(limit, event):
    code = "import chimera\nfrom chimera.cli.failure import exit_code_of\n"
    code += "try:\n    chimera.engine('local')\nexcept OSError as error:\n    raise SystemExit(exit_code_of(error))"
    command = f"ulimit {limit}; exec {shlex.quote(sys.executable)} -c {shlex.quote(code)}"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert f"{event}: shared memory needs" in done.stderr
    assert done.stderr.endswith(f"raise the limit 'ulimit {limit[:2]}'\n")


def test_user_code_in_the_driver_shows_its_traceback(capsys):
    def scale(by):
        return 1 / by

    with pytest.raises(ZeroDivisionError) as caught:
        scale(0)
    assert exit_code_of(caught.value) == 1
    first, _, rest = capsys.readouterr().err.partition("\n")
    assert first == "error: the run failed: ZeroDivisionError: division by zero"
    assert "return 1 / by" in rest


def test_the_traceback_of_user_code_starts_below_the_command(invoke, experiment, tmp_path, monkeypatch):
    from chimera.training.trainer import Trainer

    def fail(self):
        raise LookupError("nowhere")

    monkeypatch.setattr(Trainer, "fit", fail)
    result = invoke("train", experiment, "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: the run failed: LookupError: nowhere\nTraceback")
    assert "in fail" in result.stderr
    assert "typer" not in result.stderr


class Divider:
    def divide(self, by):
        return 1 / by


@pytest.mark.long
@pytest.mark.parametrize("name", ["simulated", "local"])
def test_an_actor_exception_is_one_line_and_the_remote_traceback(name, capsys):
    with ENGINES.create(name) as engine:
        actor = engine.spawn(Divider, name="worker 3")
        with pytest.raises(ZeroDivisionError) as caught:
            engine.get(actor.divide(0))
    assert exit_code_of(caught.value) == 1
    first, _, rest = capsys.readouterr().err.partition("\n")
    assert first.startswith("error: the run failed: ")
    for part in ("worker 3", "divide", "ZeroDivisionError", "division by zero"):
        assert part in first
    assert "return 1 / by" in rest
    assert "exit_code_of" not in rest


def test_a_command_that_trains_nothing_names_no_run(tmp_path, monkeypatch):
    def fail(_):
        raise RunError("it rains")

    monkeypatch.setattr("chimera.federation.audit.verify.verify", fail)
    done = CliRunner().invoke(app, ["audit", "verify", str(tmp_path)])
    assert done.exit_code == 1
    assert done.stderr.startswith("error: the command failed: ")

"""Tests of the program: its help, its version, and its imports."""

import os
import shlex
import subprocess
import sys

import pytest

import chimera

HEAVY = {"torch", "ray", "sklearn", "scipy", "pandas", "matplotlib"}


def test_version(invoke):
    result = invoke("--version")
    assert (result.exit_code, result.stdout) == (0, f"chimera {chimera.__version__}\n")


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_help_names_every_command(invoke, arguments):
    result = invoke(*arguments)
    assert result.exit_code == 0
    for command in ("train", "data", "demo", "list", "report"):
        assert command in result.stdout


@pytest.mark.parametrize("arguments", [["trian"], ["--nope"], ["train", "--nope"], ["report"]])
def test_a_usage_error_is_one_line(invoke, arguments):
    result = invoke(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


def test_the_installed_script_and_the_module_are_one_program(start):
    process = start("--version")
    assert process.communicate(timeout=60) == (f"chimera {chimera.__version__}\n", "")


@pytest.mark.parametrize(
    "code",
    [
        "import chimera",
        "import chimera.cli.main",
        "from chimera.cli.main import app; app(['--help'], standalone_mode=False)",
        "from chimera.cli.main import app; app(['train', 'absent.toml'], standalone_mode=False)",
        "from chimera.cli.main import app; app(['list'], standalone_mode=False)",
    ],
)
def test_heavy_libraries_are_not_imported(code):
    script = f"import sys; {code}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert not loaded & HEAVY
    if code == "import chimera":
        assert not loaded & {"numpy", "typer", "rich"}


def test_a_closed_pipe_gives_no_traceback(start):
    reading, writing = os.pipe()
    os.close(reading)
    process = start("list", stdout=writing)
    os.close(writing)
    _, stderr = process.communicate(timeout=60)
    assert stderr == ""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_a_closed_stream_gives_no_traceback(closed):
    command = f"{shlex.quote(sys.executable)} -m chimera list codecs {closed}"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.long
def test_a_warning_is_one_line_without_code(start, tmp_path):
    (tmp_path / "text.txt").write_text("call me ishmael some years ago never mind how long " * 20)
    (tmp_path / "test.txt").write_text("call me zorp some years\ncall me ishmael some years\n")
    options = ["--engine", "simulated", "--rounds", "1", "--learners", "1", "--output", "negative-sampling", "--quiet"]
    process = start(
        "embed",
        str(tmp_path / "text.txt"),
        "--test",
        str(tmp_path / "test.txt"),
        *options,
        "--out",
        str(tmp_path / "o"),
    )
    _, told = process.communicate(timeout=120)
    assert process.returncode == 0
    assert told.startswith("warning: the file of test windows")
    assert told.count("\n") == 1


def test_a_program_that_the_users_code_ends_with_a_text_fails(start, tmp_path):
    (tmp_path / "net.py").write_text("import sys\n\n\ndef made():\n    sys.exit('no data in this folder')\n")
    (tmp_path / "run.toml").write_text('data = "digits"\nmodel = "net.py:made"\n')
    process = start("train", "run.toml")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors.endswith("no data in this folder\n")

"""The blocks of the README and of two pages on the command line, run in order with only the packages that they install."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bare_environment
import chimera
from chimera.core.file_modules import load_file

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = ("README.md", "docs/how-to/command-line.md", "docs/how-to/compare.md")
LIMIT_S = 300.0
TESTED_ELSEWHERE = {
    "make demo": "downloads packages; the command that it runs is tested by test_extras",
    "make test": "runs this test",
}
UP = re.compile(r"the master serves at|a coordinator, its standbys")
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w])")


def blocks(page: str) -> Iterator[tuple[str, str]]:
    """Yield the kind and the text of each block of a page: ``shell`` (indented), ``python`` or ``text``."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for fenced, body, indented in re.findall(
        r"```(\w+)\n(.*?)```|((?:^    [^\n]*\n)+)", text, re.DOTALL | re.MULTILINE
    ):
        yield (fenced, body) if fenced else ("shell", re.sub(r"^    ", "", indented, flags=re.MULTILINE))


def commands(block: str) -> list[str]:
    """Return the commands of a block, each with its comment."""
    return [line for line in block.replace("\\\n", " ").splitlines() if line.strip()]


def copy_checkout(home: Path) -> None:
    """Copy the files under version control only, because other files can change the result of a command."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, home / name)


class Shell:
    """The reader's terminal, and further ones for commands that stay in the foreground.

    Parameters
    ----------
    folder : where the reader is.
    environment : the virtual environment that is active.
    """

    def __init__(self, folder: Path, environment: Path) -> None:
        self.folder = folder
        self._started: list[subprocess.Popen[bytes]] = []
        self._variables = {
            **{key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "CHIMERA_DATA")},
            "PATH": f"{environment / 'bin'}:{os.environ['PATH']}",
            "VIRTUAL_ENV": str(environment),
            "CHIMERA_LAUNCHER": "process",  # containers need an image from a registry; tests/nodes/launch has their tests
        }

    def type(self, command: str) -> None:
        """Run a command; return when it is done or, if it stays in the foreground, when it is ready."""
        if "stays in the foreground" in command:
            self._start(command)
            return
        script = f"{command}\npwd >{self.folder / 'folder'}"  # `cd` lasts
        done = subprocess.run(
            ["bash", "-ec", script], cwd=self.folder, env=self._variables,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        self.folder = Path((self.folder / "folder").read_text(encoding="utf-8").strip())

    def _start(self, command: str) -> None:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"], cwd=self.folder, env=self._variables, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._started.append(process)
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line.decode())
            if UP.match(said[-1]):
                return
        pytest.fail(f"{command}\n{''.join(said)}")

    def close(self, stopped: bool) -> None:
        """Wait for the commands in the other terminals to exit, after Ctrl-C unless they were stopped by a command."""
        for process in self._started:
            if not stopped:
                os.killpg(process.pid, signal.SIGINT)
            process.communicate(timeout=LIMIT_S)
            assert process.returncode in (0, 130)
        self._started.clear()


def run_block(shell: Shell, home: Path, kind: str, block: str) -> None:
    """Run a block as a reader does."""
    if kind == "python":
        (home / "program.py").write_text(block, encoding="utf-8")
        shell.type("python program.py")
    elif kind == "shell":
        shell.folder = home
        ended = False
        try:
            for command in commands(block):
                shell.type(command)
                ended = " down" in command
        finally:
            shell.close(ended)


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run_from_the_first_to_the_last(page, tmp_path):
    bare_environment.create(tmp_path / "environment")
    home = tmp_path / "checkout"
    copy_checkout(home)
    shell = Shell(home, tmp_path / "environment")
    (home / ".venv").symlink_to(tmp_path / "environment")
    shell.type("pip install -e '.[train]'")  # as the README does
    for kind, block in blocks(page):
        if not any(block.startswith(text) for text in TESTED_ELSEWHERE):
            run_block(shell, home, kind, block)


def test_the_readme_fits_on_a_few_screens_and_its_files_exist():
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    for picture in re.findall(r'(?:src|srcset)="([^"]+)"', text):
        assert (ROOT / picture).stat().st_size < 150_000
    linked = re.findall(r"\]\((?!http)([^)#]+)", text)
    assert [place for place in linked if not (ROOT / place).exists()] == []
    assert re.search(r'<img [^>]*alt="[^"]{80,}"', text)


def program() -> str:
    """Return the README's program."""
    (block,) = [block for kind, block in blocks("README.md") if kind == "python"]
    return block


@pytest.mark.takes("it starts a program with torch and four workers")
def test_the_program_of_the_readme_prints_its_output(tmp_path):
    (printed,) = [block for kind, block in blocks("README.md") if kind == "text"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "80"}
    done = subprocess.run(
        [sys.executable, "-c", program()],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shown, expected = (re.sub(r"; [\d.]+ (?:ms|s); ", "; TIME; ", text) for text in (done.stdout, printed))
    assert NUMBER.sub("N", shown).split() == NUMBER.sub("N", expected).split()
    numbers = [[float(each) for each in NUMBER.findall(text)] for text in (shown, expected)]
    np.testing.assert_allclose(*numbers, rtol=0.02)  # the last digits depend on the processor
    assert (tmp_path / "runs/Sequential-DataFrame/report.html").exists()


@pytest.mark.long
def test_the_text_of_the_picture_states_the_bytes_of_its_runs(tmp_path):
    picture = load_file(ROOT / "docs/readme_picture.py")
    (text,) = re.findall(r'alt="([^"]+)"', README.read_text(encoding="utf-8"))
    found = []
    for number, options in enumerate(picture.COMPARED.values()):
        figures = picture.train(tmp_path / str(number), **options).figures()
        found.append(round((figures["bytes_up"] + figures["bytes_down"]) / 1e6))
        assert figures["metrics"]["accuracy"] == pytest.approx(0.96, abs=0.01)
    assert [int(number) for number in re.findall(r"(\d+)\s+MB", text)] == found


@pytest.mark.takes("it starts eight workers")
@pytest.mark.parametrize(
    "strategy",
    ["parameter-server", *(pytest.param(name, marks=pytest.mark.long) for name in ("all-reduce", "fed-avg", "diloco"))],
)
def test_the_program_of_the_readme_has_the_same_bits_on_simulated_and_local(tmp_path, monkeypatch, strategy):
    monkeypatch.chdir(tmp_path)
    weights = []
    for engine in ("simulated", "local", "local"):
        names: dict[str, Any] = {}
        exec(program().replace("seed=1)", f"seed=1, engine={engine!r}, strategy={strategy!r})"), names)
        run: chimera.Run = names["run"]
        assert f"on {engine};" in repr(run)
        weights.append(run.trained.parameters().tobytes())
    assert weights[0] == weights[1] == weights[2]

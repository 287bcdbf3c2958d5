"""The README's commands and programs, run in order with only the packages that the README installs."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import bare_environment

ROOT = Path(__file__).parents[2]
LIMIT_S = 300.0
TESTED_ELSEWHERE = {
    "make demo": "downloads packages; the command that it runs is tested by test_extras",
    "make test": "runs this test",
    "class Worker:": "a fragment",
}
FILES = {"class Cyclic": "cyclic.py", "import chimera\n": "program.py"}
UP = re.compile(r"the master serves at|a coordinator, its standbys")


def blocks() -> Iterator[tuple[str, str]]:
    """Return the kind and the text of each block of the README: ``shell`` (indented), ``python`` or ``toml``."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
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


@pytest.mark.long
def test_the_readme_works_from_its_first_line_to_its_last(tmp_path):
    bare_environment.create(tmp_path / "environment")
    home = tmp_path / "checkout"
    copy_checkout(home)
    shell = Shell(home, tmp_path / "environment")
    for kind, block in blocks():
        if any(block.startswith(text) for text in TESTED_ELSEWHERE):
            continue
        if kind == "toml":
            (home / "experiment.toml").write_text(block, encoding="utf-8")
            shell.type("chimera train experiment.toml")
        elif kind == "python":
            (name,) = [name for text, name in FILES.items() if text in block][:1]
            (home / name).write_text(block, encoding="utf-8")
            if "__main__" in block:
                shell.type(f"python {name}")
        else:
            shell.folder = home
            ended = False
            try:
                for command in commands(block):
                    shell.type(command)
                    ended = " down" in command
            finally:
                shell.close(ended)
    assert (home / "runs/mlp-digits/report.html").exists()
    assert len((home / "labels.jsonl").read_text(encoding="utf-8").splitlines()) == 1797

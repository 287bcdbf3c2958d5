"""The blocks of a page, executed in order: ``python -m run_page PAGE`` in an empty folder.

All Python blocks share one namespace, which is that of ``__main__``. Each shell block is a script that starts in this folder.
A block whose first line names a file is written to this file. A block of plain text after a block must be its output, where
``...`` matches anything, and numbers with a point may differ in their last digits.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import linecache
import math
import os
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path

from pages_kit import ROOT, Block, blocks, commands
from pages_toml import check_toml

DECIMAL = re.compile(r"-?\d+\.\d+(?:e[+-]?\d+)?")
SHORTENED = re.compile(r"chimera (train|compare|submit|infer up|embed(?! (neighbours|analogy|evaluate|save)))\b")
INSTALLATION = re.compile(r"make |\. \.venv/")  # the reader's environment, which has all packages


class Page:
    """A page and the state of its execution.

    Parameters
    ----------
    name : path of the page in the checkout.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.blocks = list(blocks((ROOT / name).read_text(encoding="utf-8")))
        self.folder = Path.cwd()
        self.shown = ""
        """What the last executed block has printed."""
        self.module = types.ModuleType("__main__")
        self.module.__dict__["__builtins__"] = __builtins__
        self.started: list[subprocess.Popen[str]] = []
        """The commands in the foreground that end with the block."""
        self.staying: list[subprocess.Popen[str]] = []
        """Those that end with the page."""

    def run(self) -> None:
        """Execute all blocks."""
        sys.modules["__main__"] = self.module
        sys.path.insert(0, "")
        try:
            for index, block in enumerate(self.blocks):
                os.chdir(self.folder)
                for setup in block.comments.get("setup", []):
                    self._python(Block(block.line, "python", setup))
                if block.reason or block.kind not in ("python", "toml", "shell", "output"):
                    continue
                sys.stdout.write(f"{self.name}:{block.line} {block.kind} ")
                sys.stdout.flush()
                began = time.monotonic()
                self._run(block, "\n".join(later.text for later in self.blocks[index + 1 :]))
                sys.stdout.write(f"{time.monotonic() - began:.1f} s\n")
                for check in block.comments.get("check", []):
                    exec(check, {"shown": self.shown})
                self._end(self.started)
        finally:
            self._end(self.started + self.staying)

    def _run(self, block: Block, later: str) -> None:
        if block.file:
            path = self.folder / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        if block.kind in ("python", "shell"):
            self.shown = ""
        if block.kind == "toml":
            check_toml(block)
        elif block.kind == "shell":
            self._shell(block)
        elif block.kind == "output":
            self._compare(block)
        elif not block.file:
            self._python(block)
        elif not re.search(rf"\b{re.escape(path.stem)}\b", later):
            runpy.run_path(str(path), run_name="__main__")

    def _python(self, block: Block) -> None:
        source = "\n" * (block.line - 1) + block.text
        place = f"{self.name}:{block.line}"
        linecache.cache[place] = (len(source), None, source.splitlines(keepends=True), place)  # for tracebacks
        shown = io.StringIO()
        try:
            with contextlib.redirect_stdout(shown):
                exec(compile(source, place, "exec"), self.module.__dict__)
        finally:
            self.shown += shown.getvalue()

    def _shell(self, block: Block) -> None:
        extra = " ".join(block.comments.get("executed with", []))
        foreground = {}
        for lasting, processes in (("", self.started), (" from here on", self.staying)):
            for command, ready in map(_until, block.comments.get(f"in another terminal{lasting}", [])):
                processes.append(self._start(f"exec {command}", ready))
            for command, ready in map(_until, block.comments.get(f"foreground{lasting}", [])):
                foreground[command] = processes, ready
        written = commands(block)
        assert all(any(line.startswith(prefix) for line in written) for prefix in foreground), "no such command"
        script: list[str] = []
        for command in written:
            if INSTALLATION.match(command):
                continue
            if extra and SHORTENED.match(command):
                words, hash_, comment = command.partition("  #")
                command = f"{words} {extra}{hash_}{comment}"
            prefix = next((prefix for prefix in foreground if command.startswith(prefix)), None)
            if prefix is None:
                script.append(command)
                continue
            self._finish(script)
            script = [line for line in script if line.startswith("export ")]
            processes, ready = foreground[prefix]
            processes.append(self._start("\n".join([*script, f"exec {command}"]), ready))
        self._finish(script)

    def _finish(self, script: list[str]) -> None:
        """Run commands. The page then is in the folder to which they have changed."""
        place = self.folder.with_name("place")
        command = ["bash", "-exc", "\n".join([*script, f"{{ pwd >{place}; }} 2>&-"])]
        # Files, since a daemon that a command leaves would keep pipes open.
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, check=False)
            out.seek(0)
            err.seek(0)
            self.shown += out.read()
            assert done.returncode == 0, f"exit code {done.returncode}\n{self.shown}{err.read()}"
        os.chdir(place.read_text(encoding="utf-8").strip())

    def _start(self, script: str, ready: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            ["bash", "-ec", script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        shown = ""
        for line in process.stdout:
            shown += line
            if ready in line:
                return process
        raise AssertionError(f"{script}: exit code {process.wait()} before the text {ready!r}\n{shown}")

    def _compare(self, block: Block) -> None:
        shown, self.shown = self.shown, ""
        if not agrees(block.text, shown):
            lines = difflib.unified_diff(block.text.splitlines(), shown.splitlines(), "page", "output", lineterm="")
            raise AssertionError("the page shows another output:\n" + "\n".join(lines))

    def _end(self, processes: list[subprocess.Popen[str]]) -> None:
        for process in processes:
            process.send_signal(signal.SIGINT)
        for process in processes:
            process.communicate(timeout=30)
        processes.clear()


def agrees(page: str, shown: str) -> bool:
    """Return whether a text is what the page shows. Numbers with a point may differ in their last digits, as processors do."""
    expected = _plain(page)
    pattern = re.escape(DECIMAL.sub("\0", expected)).replace(re.escape("\0"), f"({DECIMAL.pattern})")
    found = re.fullmatch(pattern.replace(re.escape("..."), ".*"), _plain(shown), re.DOTALL)
    if found is None:
        return False
    pairs = zip(map(float, DECIMAL.findall(expected)), map(float, found.groups()), strict=True)
    return all(math.isclose(a, b, rel_tol=0.1, abs_tol=0.03) for a, b in pairs)


def _until(comment: str) -> tuple[str, str]:
    """Return the command that a comment names, and the text that shows that it is ready."""
    command, _, ready = comment.partition(", ready at: ")
    assert ready, f"the comment names no text at which the command is ready: {comment}"
    return command.strip(), ready.strip()


def _plain(text: str) -> str:
    """Return a text without spaces at the ends of lines."""
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def main(name: str) -> None:
    """Execute a page."""
    Page(name).run()


if __name__ == "__main__":
    main(*sys.argv[1:])

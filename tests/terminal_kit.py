"""What a command shows on a terminal of a width, real or rich's, and in a pipe."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

from rich.console import Console, RenderableType

from chimera.report.text_table import TextTable, print_table

WIDTHS = (80, 100, 140)
_CONTROL = re.compile(r"\x1b(\[[0-9;?]*[a-zA-Z]|\]8;[^\x1b]*\x1b\\)")


def lines_at(width: int, shown: RenderableType) -> list[str]:
    """Return the lines on a terminal of this width, once it is checked that none is longer."""
    console = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=width, height=40, _environ={})
    console.print(shown, crop=False)
    return _checked(console.file.getvalue(), width)  # type: ignore[attr-defined]


def lines_in_pipe(table: TextTable) -> list[str]:
    """Return the lines of a table without a terminal."""
    console = Console(file=io.StringIO(), force_terminal=False, width=80, _environ={})
    print_table(table, console)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def shown_on(terminal: int) -> bytes:
    """Return all that a program writes to a pseudo-terminal until it ends, and close the terminal."""
    shown = b""
    try:
        while part := os.read(terminal, 65536):
            shown += part
    except OSError:  # how Linux says that the other end of a terminal was closed
        pass
    os.close(terminal)
    return shown


def plain(shown: bytes) -> str:
    """Return the text on a terminal without control sequences."""
    return _CONTROL.sub("", shown.decode())


def run_in_terminal(width: int, *arguments: object, cwd: Path, timeout_s: float = 120.0) -> tuple[int, list[str]]:
    """Run the program ``chimera`` on a pseudo-terminal of this width; return its exit code and the lines, checked likewise."""
    terminal, program = pty.openpty()
    fcntl.ioctl(program, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-m", "chimera", *map(str, arguments)],
        cwd=cwd, env={**environment, "TERM": "xterm-256color"}, stdin=program, stdout=program, stderr=program,
    )  # fmt: skip
    os.close(program)
    shown = shown_on(terminal)
    return process.wait(timeout_s), _checked(plain(shown), width)


def _checked(text: str, width: int) -> list[str]:
    lines = [line.rstrip() for line in re.split(r"\r?\n|\r", text)]
    assert [line for line in lines if len(line) > width] == []
    return lines


def check_table(lines: list[str], table: TextTable) -> None:
    """Check a table on a terminal: whole keys, headings and figures; omitted columns are named."""
    text = "\n".join(lines)
    told = re.search(r"^not shown: (.*?); widen", " ".join(text.partition("not shown: ")[1:]), re.DOTALL)
    left_out = re.split(r",\s+", " ".join(told[1].split())) if told else []
    words = set(text.split())
    for column in table.columns:
        if column.importance == 0:
            assert column.heading not in left_out
        if column.heading in left_out:
            continue
        assert column.long or set(column.heading.split()) <= words, column.heading
        if column.least is None and column.importance:
            assert set(" ".join(map(str, column.cells)).split()) - words <= set(), column.heading
    keys = [column for column in table.columns if column.importance == 0]
    for key in keys:
        for cell in map(str, key.cells):
            assert any(cell in line for line in lines), cell
    order = [column.importance for column in table.columns if not column.long and column.heading not in left_out]
    gone = [column.importance for column in table.columns if column.heading in left_out]
    assert not gone or max(order) <= min(gone)

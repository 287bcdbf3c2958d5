"""The tutorials that are notebooks: their cells run without an error, and the figures that their texts state are true.

The texts of a page state figures, and cells with the tag ``remove-cell`` assert them, so running the page checks its text.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "tutorials"
NOTEBOOK = re.compile(r"\A---\n.*?^file_format: mystnb$.*?^---$", re.MULTILINE | re.DOTALL)
CELL = re.compile(r"^(?P<fence>`{3,})\{code-cell\}[^\n]*\n(?P<body>.*?)^(?P=fence)$", re.MULTILINE | re.DOTALL)
OPTIONS = re.compile(r"\A(?:---\n(?P<block>.*?)^---\n|(?P<lines>(?::\S+:[^\n]*\n)+))", re.MULTILINE | re.DOTALL)
LIMIT_S = 300  # of a page, on a machine that is busy with other tests
PAGES = sorted(path.name for path in FOLDER.glob("*.md") if NOTEBOOK.search(path.read_text(encoding="utf-8")))


class Cell(NamedTuple):
    source: str
    options: str


def cells_of(text: str) -> list[Cell]:
    """Return the code cells of a page."""
    cells = []
    for found in CELL.finditer(text):
        body = found["body"]
        options = OPTIONS.match(body)
        cells.append(Cell(body[options.end() :] if options else body, options[0] if options else ""))
    return cells


def checked(cells: list[Cell]) -> list[str]:
    """Return the sources of the cells, each followed by a check of the exit code of its last shell command.

    The code 1 is that of a failed run or test, which a page may show and then assert. All others are mistakes in the command.
    A cell with the tag ``raises-exception`` shows such a mistake, so its command must fail.
    """
    sources = []
    for cell in cells:
        sources.append(cell.source)
        if re.search(r"^!", cell.source, re.MULTILINE):
            allowed = "!= 0" if "raises-exception" in cell.options else "in (0, 1)"
            sources.append(f"assert _exit_code {allowed}, _exit_code")
    return sources


def execute(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    paths = [str(Path(sys.executable).parent), os.environ["PATH"]]
    modules = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PATH": os.pathsep.join(paths), "PYTHONPATH": os.pathsep.join(filter(None, modules))}
    command = [sys.executable, ROOT / "tests" / "cli" / "execute_notebook.py", str(LIMIT_S)]
    given = json.dumps(checked(cells_of(text)))
    return subprocess.run(
        command, cwd=folder, env=environment, input=given, capture_output=True, text=True, check=False, timeout=LIMIT_S
    )


needs_a_kernel = pytest.mark.skipif(
    find_spec("nbclient") is None or find_spec("ipykernel") is None,
    reason="nbclient or ipykernel is missing: make install",
)


def test_cells_are_read_with_their_options() -> None:
    text = (
        "```{code-cell} ipython3\nprint(1)\n```\n\n```python\nignored\n```\n"
        "````{code-cell}\n---\ntags: [remove-cell]\n---\ntext = '''\n```\n'''\n````\n"
        "```{code-cell} ipython3\n:tags: [raises-exception]\n!false\n```\n"
    )
    assert [cell.source for cell in cells_of(text)] == ["print(1)\n", "text = '''\n```\n'''\n", "!false\n"]
    assert checked(cells_of(text))[-1] == "assert _exit_code != 0, _exit_code"


def test_there_are_pages() -> None:
    assert {"quickstart.md", "strategies-compared.md", "your-model.md"} <= set(PAGES)
    for page in PAGES:
        text = (FOLDER / page).read_text(encoding="utf-8")
        assert len(cells_of(text)) == len(re.findall(r"^`{3,}\{code-cell\}", text, re.MULTILINE))


@pytest.mark.long
@pytest.mark.takes("it executes a whole tutorial")
@needs_a_kernel
@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs_in_an_empty_folder(page: str, tmp_path: Path) -> None:
    if 'engine="ray"' in (text := (FOLDER / page).read_text(encoding="utf-8")):
        pytest.importorskip("ray", reason="Ray is missing: make install")
    done = execute(text, tmp_path)
    assert done.returncode == 0, done.stderr[-5000:]
    shown = [output.get("text", "") for outputs in json.loads(done.stdout) for output in outputs]
    assert [text for text in shown if "Traceback (most recent call last)" in text] == []


@pytest.mark.long
@needs_a_kernel
@pytest.mark.parametrize("cell", ["1 / 0", "!chimera train no-such.toml", "!no-such-program", "assert 2 == 3"])
def test_an_error_of_a_cell_fails(cell: str, tmp_path: Path) -> None:
    assert execute(f"```{{code-cell}}\n{cell}\n```\n", tmp_path).returncode != 0

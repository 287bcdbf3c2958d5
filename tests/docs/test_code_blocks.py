"""The blocks of code in the documentation are executed as they stand on the page; what is not executed has a reason.

`tests/cli/test_readme.py` executes the README. Notebooks are executed where the site is built.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import matplotlib as mpl
import pytest

from pages_kit import ROOT, blocks, commands, pages
from run_page import agrees

LIMIT_S = 300.0
PAGES = {name: list(blocks((ROOT / name).read_text(encoding="utf-8"))) for name in pages()}
EXECUTED = ("python", "toml", "shell")
COMMENTS = {
    "not executed", "setup", "check", "executed with", "foreground", "foreground from here on", "in another terminal",
    "in another terminal from here on",
}  # fmt: skip
PIP = """#!{python}
# Installs nothing: fails if a requirement is not installed, or an extra does not exist.
import sys
from importlib.metadata import distribution
from packaging.requirements import InvalidRequirement, Requirement

assert sys.argv[1] == "install", sys.argv
for word in sys.argv[2:]:
    if word.startswith(("-", ".", "dist/")):
        continue
    requirement = Requirement(word)
    known = distribution(requirement.name).metadata.get_all("Provides-Extra") or []
    assert requirement.extras <= set(known), word
"""


def with_blocks() -> list[str]:
    """Return the pages on which a block is executed."""
    return [name for name, found in PAGES.items() if any(one.kind in EXECUTED and not one.reason for one in found)]


@functools.cache
def isolated() -> list[str]:
    """Return a command that runs another without a network but 127.0.0.1, and ends all its processes with it.

    The test is skipped where the system cannot do so, since servers of pages have fixed ports, and a page ends all Rays.
    """
    command = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if os.getuid():
        command.insert(1, "--map-root-user")
    command += ["bash", "-c", 'ip link set lo up && "$@"; exit $?', "bash"]
    if not shutil.which("unshare") or subprocess.run([*command, "true"], check=False, capture_output=True).returncode:
        pytest.skip(
            "no network namespace: apt-get install util-linux iproute2, and run as root or allow user namespaces"
        )
    return command


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a page: it has the examples of the checkout, and is empty otherwise."""
    folder = tmp_path / "page"
    folder.mkdir()
    for name in subprocess.check_output(["git", "ls-files", "examples"], cwd=ROOT, text=True).splitlines():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return the variables of a reader who has installed Chimera with all extras and is not connected to a network."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "home").mkdir()
    pip = tmp_path / "bin" / "pip"
    pip.write_text(PIP.format(python=sys.executable), encoding="utf-8")
    pip.chmod(0o755)
    own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}  # of a Ray of other tests
    return {
        **own,
        "CHIMERA_LAUNCHER": "process",
        "CHIMERA_TELEMETRY": "0",
        "HF_HUB_OFFLINE": "1",
        "HOME": str(tmp_path / "home"),
        "MPLBACKEND": "Agg",
        "MPLCONFIGDIR": mpl.get_configdir(),
        "PATH": os.pathsep.join([str(pip.parent), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")]),
        "WANDB_MODE": "offline",
    }


def with_comments(page: str) -> dict[int, dict[str, list[str]]]:
    """Return the comments before each block of a page, by the line of the block."""
    return {block.line: block.comments for block in PAGES[page] if block.comments}


@pytest.mark.parametrize("page", [name for name in PAGES if with_comments(name)])
def test_the_comments_before_blocks_are_those_that_the_test_knows(page: str) -> None:
    for line, comments in with_comments(page).items():
        assert comments.keys() <= COMMENTS, f"{page}:{line}"


def test_each_block_that_is_not_executed_has_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    left_out = [(page, block) for page, found in PAGES.items() for block in found if "not executed" in block.comments]
    assert all(len(block.reason) > 10 for _, block in left_out)
    executed = Counter(one.kind for found in PAGES.values() for one in found if one.kind in EXECUTED and not one.reason)
    reasons = Counter(block.reason for _, block in left_out)
    with capsys.disabled():
        lines = [f"{number} {reason}" for reason, number in reasons.most_common()]
        sys.stdout.write("\n  ".join([f"\nexecuted: {dict(executed)}; not executed:", *lines]) + "\n")
    assert len(left_out) < executed.total() / 4


def test_the_pages_with_blocks_are_found() -> None:
    assert len(with_blocks()) > 35
    assert "docs/how-to/losses-and-metrics.md" in PAGES
    assert not any(name.startswith(("docs/decisions", "README")) for name in PAGES)


TEXT = """
<!-- setup:
x = 1
-->
<!-- not executed: needs a cloud -->

    chimera train x.toml \\
        --workers 2
    # a comment

    epoch 3 is shown, not executed

```python
# mine.py
print(x)
```

```console
$ chimera list
strategies
```
"""


def test_blocks_are_read_with_their_kinds_and_comments() -> None:
    shell, shown, python, console = blocks(TEXT)
    assert (shell.kind, shown.kind, python.kind, console.kind) == ("shell", "shown", "python", "shell")
    assert (shell.reason, shown.reason) == ("needs a cloud", "")
    assert shell.comments["setup"] == ["x = 1"]
    assert commands(shell) == ["chimera train x.toml --workers 2"]
    assert commands(console) == ["chimera list"]
    assert (python.file, python.line) == ("mine.py", 14)


@pytest.mark.parametrize(
    ("page", "shown", "same"),
    [
        ("accuracy 0.91\n", "accuracy 0.92  ", True),
        ("accuracy 0.91", "accuracy 0.61", False),
        ("[1, 2]", "[1, 3]", False),
        ("epoch 1...done", "epoch 1\nepoch 2\n done", True),
        ("a\nb", "a\nb\nc", False),
    ],
)
def test_outputs_agree_except_for_the_last_digits(page: str, shown: str, same: bool) -> None:
    assert agrees(page, shown) is same


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```python\nx = 1\nx / 0\n```\n", "ZeroDivisionError"),
        ("```python\nprint(1)\n```\n\n```text\n2\n```\n", "another output"),
        ("```sh\ncd nowhere\n```\n", "nowhere"),
        ("```toml\n[train]\nepoch = 1\n```\n", "epoch"),
        ("<!-- in another terminal: python -c 1, ready at: up -->\n\n```sh\ncd .\n```\n", "before the text 'up'"),
    ],
    ids=["Python", "output", "shell", "TOML", "foreground"],
)
def test_a_wrong_block_fails(text: str, message: str, folder: Path, environment: dict[str, str]) -> None:
    (folder / "page.md").write_text(text, encoding="utf-8")
    shown = executed(str(folder / "page.md"), folder, environment)
    assert shown.returncode != 0
    assert message in shown.stdout


@pytest.mark.long
@pytest.mark.takes("it starts the processes of a page")
@pytest.mark.parametrize("page", with_blocks())
def test_the_blocks_of_a_page_work(page: str, folder: Path, environment: dict[str, str]) -> None:
    done = executed(page, folder, environment)
    assert done.returncode == 0, done.stdout


def executed(page: str, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Execute a page in a folder, and end all processes that it leaves."""
    process = subprocess.Popen(
        [*isolated(), sys.executable, "-m", "run_page", page], cwd=folder, env=environment, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        shown, _ = process.communicate(timeout=LIMIT_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(page, process.returncode, shown)

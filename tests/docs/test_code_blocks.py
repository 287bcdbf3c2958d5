"""The blocks of code in the documentation are executed as they stand on the page; what is not executed has a reason.

`tests/cli/test_readme.py` executes the README. Notebooks are executed where the site is built.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import matplotlib as mpl
import pytest

from pages_kit import ROOT, Block, blocks, commands, pages


LIMIT_S = 150.0
PAGES = {name: list(blocks((ROOT / name).read_text(encoding="utf-8"))) for name in pages()}
EXECUTED = ("python", "toml", "shell")
COMMENTS = {"not executed", "setup", "executed with", "foreground"}
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

    It is empty where the system cannot do so.
    """
    command = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if os.getuid():
        command.insert(1, "--map-root-user")
    command += ["bash", "-c", 'ip link set lo up && "$@"; exit $?', "bash"]
    if not shutil.which("unshare") or subprocess.run([*command, "true"], check=False, capture_output=True).returncode:
        return []
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
    return {
        **os.environ,
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


@pytest.mark.long
@pytest.mark.parametrize("page", with_blocks())
def test_the_blocks_of_a_page_work(page: str, folder: Path, environment: dict[str, str]) -> None:
    process = subprocess.Popen(
        [*isolated(), sys.executable, "-m", "run_page", page], cwd=folder, env=environment, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        shown, _ = process.communicate(timeout=LIMIT_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, shown

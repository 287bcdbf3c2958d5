"""The tutorial `docs/tutorials/your-own-strategy.md`: its strategy; `tests/docs/test_code_blocks.py` executes the page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "tutorials" / "your-own-strategy.md").read_text(encoding="utf-8")
FILES = {found[1]: found[2] for found in re.finditer(r"^```\w+\n# (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)}
COMMANDS = re.findall(
    r"^    ((?:chimera|python|pytest) .*)$", re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL), re.MULTILINE
)


def run(command: str, folder: Path) -> str:
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path}
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_has_one_strategy_in_under_40_lines() -> None:
    assert list(FILES) == ["incremental.py", "incremental.toml", "compare.py"]
    assert len(FILES["incremental.py"].splitlines()) < 40
    assert len(COMMANDS) == 5


@pytest.mark.long
def test_the_strategy_trains(tmp_path: Path) -> None:
    shown = run(COMMANDS[0], tmp_path)
    accuracy = re.search(r"accuracy\s+([\d.]+)( ?%)?", shown)
    assert accuracy is not None, shown
    assert float(accuracy[1]) > (80 if accuracy[2] else 0.8)


@pytest.mark.long
@pytest.mark.parametrize(
    ("changes", "promise"),
    [
        (
            {"self.seed = seed": "self.seed, self.turns = seed, count()", "count(cluster.round)": "self.turns"},
            "resumed",
        ),
        ({"np.random.default_rng([self.seed, cycle])": "np.random.default_rng()"}, "twice"),
        ({"        return 1\n": "        return workers\n"}, "counts"),
    ],
    ids=["turns in an attribute", "no seed", "no batches_per_round"],
)
def test_the_kit_finds_the_faults_that_the_tutorial_suggests(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], promise: str, tmp_path: Path
) -> None:
    for right, wrong in changes.items():
        assert right in FILES["incremental.py"]
        monkeypatch.setitem(FILES, "incremental.py", FILES["incremental.py"].replace(right, wrong))
    with pytest.raises(AssertionError, match=r"\d failed"):
        run(f"{COMMANDS[-1]} --tb=no -k {promise}", tmp_path)

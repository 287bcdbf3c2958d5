"""Tests of compilation by numba: one of several processes compiles a function."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_MODULE = """
from chimera.core.jit import inlined, njit

@inlined
def twice(x):
    return 2 * x

@njit
def total(x):
    sum_ = 0
    for i in range(x):
        sum_ += twice(i)
    return sum_
"""
_PROCESS = """
import sys
from loops import total

print("ready", flush=True)
sys.stdin.readline()
assert total(5) == 20
print(sum(total.stats.cache_misses.values()))
"""
LIMIT_S = 60


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "loops.py").write_text(_MODULE)
    return tmp_path


def process(folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder / "cache")}
    started = subprocess.Popen(
        [sys.executable, "-c", _PROCESS],
        cwd=folder,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "ready\n"
    return started


@pytest.mark.long
def test_one_of_several_processes_compiles_a_function(folder: Path) -> None:
    three = [process(folder) for _ in range(3)]
    for each in three:
        assert each.stdin is not None
        each.stdin.write("\n")
        each.stdin.flush()
    misses = [each.communicate(timeout=LIMIT_S)[0] for each in three]
    assert sorted(misses) == ["0\n", "0\n", "1\n"]
    assert [each.returncode for each in three] == [0, 0, 0]

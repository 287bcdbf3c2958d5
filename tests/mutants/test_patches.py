"""The planted bugs fit the sources, so that `make mutants` plants all of them."""

import subprocess
from pathlib import Path

import pytest

PATCHES = sorted(Path(__file__).parent.glob("*.patch"))


def test_there_are_at_least_sixty():
    assert len(PATCHES) >= 60


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_a_patch_applies(patch):
    command = ["git", "apply", "--check", patch]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

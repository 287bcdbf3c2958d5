"""Plant the bug of each patch in a copy of the sources, and check that the tests which the patch names fail with it.

The first line of a patch is ``# <the bug>: <arguments of pytest>``; the last colon followed by a space divides the two.
The tests of the default run must catch 95 % of the bugs, and those of the long run the others.

    python tests/mutants/run.py            # all patches, two at a time
    python tests/mutants/run.py 07 12      # those whose names begin so
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LIMIT_S = 600.0
"""Tests that take so long catch nothing."""
FAILED, NONE_SELECTED = 1, 5  # exit statuses of pytest: tests failed; all tests were deselected
DEFAULT, LONG = "caught", "caught by the long run"
SHARE = 0.95
"""Smallest share of the bugs that the default run must catch."""


@dataclass(frozen=True)
class Mutant:
    """A bug, and the tests that must fail with it."""

    patch: Path
    bug: str
    tests: list[str]


def read(patch: Path) -> Mutant:
    first = patch.read_text().partition("\n")[0]
    bug, colon, tests = first.removeprefix("# ").rpartition(": ")
    if not (first.startswith("# ") and colon and tests):
        raise SystemExit(f"{patch.name}: the first line is '# <the bug>: <arguments of pytest>'")
    return Mutant(patch, bug, shlex.split(tests))


def git(*arguments: str | Path, cwd: Path = ROOT) -> None:
    subprocess.run(["git", *arguments], cwd=cwd, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def trial(mutant: Mutant, tree: Path) -> tuple[str, str]:
    """Return which run catches the bug, if one does, with the test that failed, and else what happened."""
    try:
        git("apply", mutant.patch, cwd=tree)
    except subprocess.CalledProcessError as error:
        return "", f"the patch does not apply: {error.stderr.decode().strip()}"
    selected_none = True
    try:
        for run, selected in ((DEFAULT, "not slow and not long"), (LONG, "long and not slow")):
            status, printed = run_tests([*mutant.tests, "-m", selected], tree)
            if status == FAILED:
                return run, first_failed(printed)
            if status not in (0, NONE_SELECTED):
                return "", f"pytest does not run: {printed[-400:]}"
            selected_none &= status == NONE_SELECTED
    except subprocess.TimeoutExpired:
        return "", f"the tests do not end within {LIMIT_S:g} s"
    finally:
        git("apply", "--reverse", mutant.patch, cwd=tree)
    return "", "no test is selected" if selected_none else "the tests pass"


def first_failed(printed: str) -> str:
    """Return the name of the test that failed, from the summary of pytest."""
    names = [line.split(" - ")[0] for line in printed.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return f"by {names[0].split(' ', 1)[1]}" if names else ""


def run_tests(arguments: list[str], tree: Path) -> tuple[int, str]:
    """Run pytest on the sources of a tree; return its exit status, and what it printed."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *arguments]
    path = os.environ | {"PYTHONPATH": str(tree / "src")}
    done = subprocess.run(command, cwd=tree, env=path, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    return done.returncode, done.stdout + done.stderr


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=[""], help="prefixes of the names of patches")
    parser.add_argument("--at-once", type=int, default=2, help="number of bugs that are tried at a time")
    given = parser.parse_args()
    mutants = [read(patch) for patch in sorted(HERE.glob("*.patch")) if patch.name.startswith(tuple(given.names))]
    own, trees, runs = threading.local(), list[Path](), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:

        def begin() -> None:
            own.tree = Path(folder, str(threading.get_ident()))
            git("worktree", "add", "--detach", own.tree)
            trees.append(own.tree)
            for part in ("src", "tests"):  # as they are now, with the kernels that are compiled already
                shutil.copytree(ROOT / part, own.tree / part, dirs_exist_ok=True)

        try:
            with ThreadPoolExecutor(given.at_once, initializer=begin) as pool:
                trials = pool.map(lambda each: trial(each, own.tree), mutants)
                for mutant, (run, detail) in zip(mutants, trials, strict=True):
                    print(f"{run or 'SURVIVES'}: {mutant.patch.stem}: {mutant.bug}", detail, flush=True)
                    runs[run] += 1
        finally:
            for tree in trees:
                git("worktree", "remove", "--force", tree)
    print(f"of {len(mutants)} bugs the default run catches {runs[DEFAULT]}, and the long run {runs[LONG]} more")
    return 1 if runs[""] or runs[DEFAULT] < SHARE * len(mutants) or not mutants else 0


if __name__ == "__main__":
    sys.exit(main())

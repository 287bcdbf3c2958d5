"""Plant the bug of each patch in a copy of the sources, and check that the tests which the patch names fail with it.

The first line of a patch is ``# <the bug>: <arguments of pytest>``; the last colon followed by a space divides the two.

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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LIMIT_S = 600.0
"""Tests that take so long catch nothing."""
FAILED = 1  # the exit status of pytest if it ran, and tests failed


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


def trial(mutant: Mutant, tree: Path) -> str:
    """Return why the tests fail to detect the bug; empty if they detect it."""
    try:
        git("apply", mutant.patch, cwd=tree)
    except subprocess.CalledProcessError as error:
        return f"the patch does not apply: {error.stderr.decode().strip()}"
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *mutant.tests]
    path = os.environ | {"PYTHONPATH": str(tree / "src")}
    try:
        done = subprocess.run(command, cwd=tree, env=path, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"the tests do not end within {LIMIT_S:g} s"
    finally:
        git("apply", "--reverse", mutant.patch, cwd=tree)
    if done.returncode == FAILED:
        return ""
    return "the tests pass" if done.returncode == 0 else f"pytest does not run: {(done.stdout + done.stderr)[-400:]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=[""], help="how the names of the patches begin")
    parser.add_argument("--at-once", type=int, default=2, help="how many bugs are tried at a time")
    given = parser.parse_args()
    mutants = [read(patch) for patch in sorted(HERE.glob("*.patch")) if patch.name.startswith(tuple(given.names))]
    own, trees, survivors = threading.local(), list[Path](), list[Mutant]()
    with tempfile.TemporaryDirectory() as folder:

        def begin() -> None:
            own.tree = Path(folder, str(threading.get_ident()))
            git("worktree", "add", "--detach", own.tree)
            trees.append(own.tree)
            for part in ("src", "tests"):  # as they are now, with the kernels that are compiled already
                shutil.copytree(ROOT / part, own.tree / part, dirs_exist_ok=True)

        try:
            with ThreadPoolExecutor(given.at_once, initializer=begin) as pool:
                for mutant, why in zip(mutants, pool.map(lambda each: trial(each, own.tree), mutants), strict=True):
                    print(f"{'SURVIVES' if why else 'caught':8}  {mutant.patch.stem}: {mutant.bug}", why, flush=True)
                    survivors += [mutant] * bool(why)
        finally:
            for tree in trees:
                git("worktree", "remove", "--force", tree)
    print(f"{len(mutants) - len(survivors)} of {len(mutants)} bugs are caught")
    return 1 if survivors or not mutants else 0


if __name__ == "__main__":
    sys.exit(main())

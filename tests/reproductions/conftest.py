"""Claims: the result of a paper, and the result measured here.

Every test here takes the fixture `claim`, and calls it when its assertions have held::

    def test_it_is_exact(learn: Learn, claim: Claim) -> None:
        run = learn("gradient-tracking")
        assert distance(run) < 1e-4
        claim(
            source="Nedic et al. 2017, theorem 3.14",
            claim="Gradient tracking is exact at a constant step; D-PSGD is not",
            figure=f"relative distance to the optimum {distance(run):.0e} against {distance(other):.2f}",
        )

``source`` is authors, year and place in the paper; ``claim`` one sentence without a full stop; ``figure`` what this test
measured, so rounded that it is the same on any machine. A test may make several claims.

``pytest tests/reproductions --write-claims`` puts them into docs/reproductions.md: it replaces the rows of the tests that ran,
keeps those of the others (add ``-m ""`` for the long ones), and drops those of tests that are gone. `test_claims.py` fails
until the page has every test.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "reproductions.md"
HEAD = """# Reproductions

What made these algorithms known, as tests in `tests/reproductions/`: each row is an assertion on small, seeded data. This table
is written by `pytest tests/reproductions --write-claims -m ""`; the figures are those of its last run.

| claim | source | our figure | test |
|---|---|---|---|
"""
Claim = Callable[..., None]


RECORDED = pytest.StashKey[dict[str, list[str]]]()
COLLECTED = pytest.StashKey[dict[pytest.Collector, None]]()


def reproductions() -> dict[str, ast.FunctionDef]:
    """Return all tests that there are, in order, by file and name."""
    files = sorted(path for path in Path(__file__).parent.glob("test_*.py") if path.name != "test_claims.py")
    return {
        f"{path.name}::{node.name}": node
        for path in files
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def rows_of(page: str) -> dict[str, list[str]]:
    """Return the rows of the table, by test with its parameters."""
    rows: dict[str, list[str]] = {}
    for line in page.splitlines():
        if line.startswith("|") and "`test_" in line:
            rows.setdefault(line.rsplit("`", 2)[1], []).append(line)
    return rows


def page_of(rows: dict[str, list[str]]) -> str:
    """Return the page: the rows of the tests there are, in their order."""
    lines = [
        line
        for there in reproductions()
        for test, said in rows.items()
        if test.partition("[")[0] == there
        for line in said
    ]
    return HEAD + "".join(f"{line}\n" for line in lines)


def still_there(rows: dict[str, list[str]], tests: Collection[str]) -> dict[str, list[str]]:
    """Return the rows whose tests still exist with the same parameters; ``tests`` are all tests of some files."""
    files = {test.partition("::")[0] for test in tests}
    return {test: said for test, said in rows.items() if test in tests or test.partition("::")[0] not in files}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--write-claims``."""
    parser.addoption("--write-claims", action="store_true", help="write docs/reproductions.md")


@pytest.fixture
def claim(request: pytest.FixtureRequest) -> Claim:
    """Record a claim of this test; all three texts are needed."""
    test = f"{request.path.name}::{request.node.name}"
    said: list[str] = []
    request.config.stash.setdefault(RECORDED, {})[test] = said
    request.config.stash.setdefault(COLLECTED, {})[request.node.parent] = None

    def record(*, source: str, claim: str, figure: str) -> None:
        cells = [text.replace("|", "\\|").replace("\n", " ") for text in (claim, source, figure)]
        assert all(cells)
        said.append(f"| {' | '.join(cells)} | `{test}` |")

    return record


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the page, if that was asked for."""
    if session.config.getoption("write_claims", default=False):
        known = rows_of(PAGE.read_text(encoding="utf-8")) if PAGE.exists() else {}
        files = session.config.stash.get(COLLECTED, {})
        known = still_there(known, {f"{file.path.name}::{test.name}" for file in files for test in file.collect()})
        said = {test: rows for test, rows in session.config.stash.get(RECORDED, {}).items() if rows}
        PAGE.write_text(page_of({**known, **said}), encoding="utf-8")

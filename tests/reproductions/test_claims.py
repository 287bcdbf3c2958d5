"""The table of claims lists every reproduction."""

from __future__ import annotations

import ast

import pytest

from reproductions.conftest import PAGE, page_of, reproductions, rows_of, still_there

pytestmark = pytest.mark.long


def test_every_reproduction_records_a_claim() -> None:
    def calls(function: ast.FunctionDef) -> set[str]:
        called = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
        return {function.id for function in called if isinstance(function, ast.Name)}

    assert [test for test, function in reproductions().items() if "claim" not in calls(function)] == []


def test_the_table_lists_exactly_the_reproductions() -> None:
    shown = {test.partition("[")[0] for test in rows_of(PAGE.read_text(encoding="utf-8"))}
    assert shown == set(reproductions()), "run pytest tests/reproductions --write-claims -m ''"


def test_writing_the_table_inverts_reading() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page_of(rows_of(page)) == page


def test_rows_of_removed_parameters_are_dropped() -> None:
    rows = {test: ["| ... |"] for test in ("test_a.py::test_x[old]", "test_a.py::test_x[new]", "test_b.py::test_y[1]")}
    assert set(still_there(rows, {"test_a.py::test_x[new]"})) == {"test_a.py::test_x[new]", "test_b.py::test_y[1]"}

"""No cell of a CSV file is evaluated as a formula by a spreadsheet."""

from __future__ import annotations

import pytest

from chimera.report.csv_cells import csv_cell


@pytest.mark.parametrize(
    "text", ["=1+1", "+1+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", "  =1", "\uff1d1", "-", "=cmd|' /C calc'!A0"]
)
def test_formulas_become_texts(text: str) -> None:
    assert csv_cell(text) == f"'{text}"


@pytest.mark.parametrize("value", [-0.5, -3, "-0.5", "+1e-3", "-inf", "a=b", "", None, True, float("nan"), "lr=0.1"])
def test_numbers_and_other_texts_are_unchanged(value: object) -> None:
    assert csv_cell(value) is value

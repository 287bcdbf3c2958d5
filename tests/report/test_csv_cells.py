"""No cell of a table is computed by the spreadsheet that opens it."""

from __future__ import annotations

import pytest

from chimera.report.csv_cells import csv_cell


@pytest.mark.parametrize(
    "text", ["=1+1", "+1+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", "  =1", "\uff1d1", "-", "=cmd|' /C calc'!A0"]
)
def test_formulas_are_texts(text: str) -> None:
    assert csv_cell(text) == f"'{text}"


@pytest.mark.parametrize("value", [-0.5, -3, "-0.5", "+1e-3", "-inf", "a=b", "", None, True, float("nan"), "lr=0.1"])
def test_numbers_and_other_texts_stay(value: object) -> None:
    assert csv_cell(value) is value

"""Tests of numbers of things in words."""

from __future__ import annotations

import pytest

from chimera.core.counted import counted


@pytest.mark.parametrize(
    ("number", "expected"), [(0, "0 workers"), (1, "1 worker"), (2, "2 workers"), (1200, "1,200 workers")]
)
def test_only_one_thing_is_singular(number: int, expected: str) -> None:
    assert counted(number, "worker") == expected


def test_a_noun_may_have_a_plural_of_its_own() -> None:
    assert [counted(number, "query", "queries") for number in (1, 2)] == ["1 query", "2 queries"]

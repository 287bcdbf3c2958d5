"""The sample of a product of parameters has every value, is small, and changes from day to day."""

import itertools
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sampling import covering, order_of_files


@given(st.lists(st.integers(1, 7), min_size=1, max_size=4), st.text(max_size=5))
def test_every_value_is_in_the_sample_and_it_is_no_larger_than_needed(sizes: list[int], seed: str) -> None:
    product = [dict(enumerate(map(str, values))) for values in itertools.product(*map(range, sizes))]
    combinations = [{str(axis): int(value) for axis, value in one.items()} for one in product]
    sample = covering(combinations, seed)
    for axis, size in enumerate(sizes):
        assert {combinations[place][str(axis)] for place in sample} == set(range(size))
    assert len(sample) == max(sizes)
    assert sample == covering(combinations, seed)
    assert len(covering(combinations, seed, 3)) == min(max(sizes), 3)


def test_another_day_has_other_combinations() -> None:
    product = [{"codec": one, "strategy": other} for one, other in itertools.product(range(20), repeat=2)]
    days = [covering(product, f"2026-11-{day:02}") for day in range(1, 31)]
    assert len(set().union(*days)) > 5 * 20


def test_files_have_another_order_on_another_day_and_tests_keep_theirs_within_a_file() -> None:
    items: list[Any] = [SimpleNamespace(nodeid=f"tests/{file}.py::{test}") for file in range(9) for test in range(3)]
    orders = [[one.nodeid for one in order_of_files(items, day)] for day in ("2026-11-24", "2026-11-25")]
    assert orders[0] != orders[1]
    for order in orders:
        assert sorted(order) == [one.nodeid for one in items]
        for places in zip(*[iter(order)] * 3, strict=True):
            assert [place.partition("::")[2] for place in places] == ["0", "1", "2"]
            assert len({place.partition("::")[0] for place in places}) == 1

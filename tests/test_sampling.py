"""The sample of a product of parameters has every value, is small, and changes from day to day."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from sampling import covering


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

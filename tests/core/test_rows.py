"""Tests of rows of flat vectors, and of shards with bounds between rows."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera.core.errors import ConfigurationError
from chimera.core.parameters import Layout, shard_bounds
from chimera.core.rows import RowLayout, SparseRows

shapes = st.lists(st.lists(st.integers(0, 5), max_size=3).map(tuple), min_size=1, max_size=6)


def layout_of(shapes: list[tuple[int, ...]]) -> Layout:
    return Layout(tuple(f"t{i}" for i in range(len(shapes))), tuple(shapes))


def rows_of(layout: Layout) -> list[tuple[int, int]]:
    """Return the bounds of each row, by definition."""
    found = []
    for shape, begin in zip(layout.shapes, layout.offsets, strict=False):
        size = int(np.prod(shape[1:])) if shape else 1
        if size:
            found += [(begin + i * size, begin + (i + 1) * size) for i in range(shape[0] if shape else 1)]
    return found


def test_nearest_returns_the_row_with_the_nearest_start() -> None:
    layout = RowLayout.of([(3, 4), (2,), (2, 5)])
    begins = [layout.offset(row) for row in range(layout.rows + 1)]
    for place in range(layout.size + 1):
        assert layout.nearest(place) == min(range(len(begins)), key=lambda row: (abs(begins[row] - place), row)), place


@given(shapes)
def test_rows_are_indices_of_the_first_axis(shapes: list[tuple[int, ...]]) -> None:
    layout = layout_of(shapes)
    rows, expected = layout.rows, rows_of(layout)
    assert (rows.rows, rows.size) == (len(expected), layout.size)
    assert [rows.offset(i) for i in range(rows.rows + 1)] == [*(begin for begin, _ in expected), layout.size]
    assert all(one != other for one, other in itertools.pairwise(rows.widths))


@given(shapes, st.data())
def test_gather_and_scatter_are_inverse(shapes: list[tuple[int, ...]], data: st.DataObject) -> None:
    layout = layout_of(shapes)
    places = rows_of(layout)
    chosen = data.draw(st.sets(st.integers(0, len(places) - 1))) if places else set()
    numbers = np.array(sorted(chosen), np.int64)
    flat = np.arange(1, layout.size + 1, dtype=np.float32)
    values = layout.rows.gather(flat, numbers)
    expected = np.zeros_like(flat)
    for number in numbers:
        begin, end = places[number]
        expected[begin:end] = flat[begin:end]
    assert values.tolist() == expected[expected > 0].tolist()
    back = np.zeros_like(flat)
    layout.rows.scatter(SparseRows(numbers, values), back)
    assert back.tolist() == expected.tolist()
    layout.rows.add(SparseRows(numbers, values), back)
    assert back.tolist() == (2 * expected).tolist()
    assert layout.rows.only(numbers).size == values.size
    factors = np.arange(layout.rows.rows, dtype=np.float32)
    layout.rows.multiply(back, factors)
    assert back.tolist() == [2 * expected[i] * n for n, (begin, end) in enumerate(places) for i in range(begin, end)]


@given(shapes, st.data())
def test_shards_split_no_row_and_are_not_empty(shapes: list[tuple[int, ...]], data: st.DataObject) -> None:
    layout = layout_of(shapes)
    rows = rows_of(layout)
    shards = data.draw(st.integers(1, max(len(rows), 1)))
    if not rows:
        with pytest.raises(ConfigurationError, match="cannot be spread over 1 shard"):
            layout.bounds(1)
        return
    bounds = layout.bounds(shards)
    assert (bounds[0], bounds[-1], len(bounds)) == (0, layout.size, shards + 1)
    assert all(begin < end for begin, end in itertools.pairwise(bounds))
    assert set(bounds) <= {begin for begin, _ in rows} | {layout.size}
    pieces = [layout.cut(begin, end) for begin, end in itertools.pairwise(bounds)]
    assert [piece.size for piece in pieces] == np.diff(bounds).tolist()
    assert sum(piece.rows.rows for piece in pieces) == len(rows)  # they stay the rows they were
    widths = [end - begin for begin, end in rows]
    assert [width for piece in pieces for width in np.repeat(piece.rows.widths, piece.rows.counts)] == widths


@given(st.lists(st.tuples(st.integers(50, 400), st.integers(1, 7)), min_size=1, max_size=4), st.integers(1, 6))
def test_shards_differ_by_at_most_one_row(matrices: list[tuple[int, int]], shards: int) -> None:
    layout = layout_of(list(matrices))
    even = layout.size / shards
    assert all(abs(length - even) <= 8 for length in np.diff(layout.bounds(shards)))


@given(st.integers(1, 5000), st.data())
def test_shards_are_as_even_as_possible(size: int, data: st.DataObject) -> None:
    shards = data.draw(st.integers(1, min(size, 40)))
    assert layout_of([(size,)]).bounds(shards) == shard_bounds(size, shards)


def test_a_long_row_leaves_rows_for_other_shards() -> None:
    layout = layout_of([(4, 1), (1, 1000)])
    assert layout.bounds(3) == [0, 3, 4, 1004]
    assert layout_of([(1, 1000), (4,)]).bounds(4) == [0, 1000, 1001, 1002, 1004]


def test_more_shards_than_rows_raise_a_one_line_error() -> None:
    with pytest.raises(ConfigurationError, match="20 parameters in 2 rows cannot be spread over 3 shards") as caught:
        layout_of([(2, 10)]).bounds(3)
    assert "\n" not in str(caught.value)


def test_a_cut_between_rows_keeps_the_shape_of_the_remaining_rows() -> None:
    layout = Layout(("w", "b"), ((4, 2, 3), (2,)))
    assert layout.cut(6, 25) == Layout(("w", "b"), ((3, 2, 3), (1,)))
    assert RowLayout.of(layout.cut(6, 25).shapes).counts == (3, 1)

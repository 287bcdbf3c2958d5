import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera.core.parameters import Layout, shard_bounds, shard_views

shapes = st.lists(st.lists(st.integers(0, 4), max_size=3).map(tuple), min_size=1, max_size=6)


def layout_of(shapes: list[tuple[int, ...]]) -> Layout:
    return Layout(tuple(f"t{i}" for i in range(len(shapes))), tuple(shapes))


@given(shapes)
def test_the_tensors_of_a_layout_are_views_that_cover_the_vector(shapes: list[tuple[int, ...]]) -> None:
    layout = layout_of(shapes)
    flat = np.arange(layout.size, dtype=np.float32)
    tensors = layout.split(flat)
    assert [tensor.shape for tensor in tensors.values()] == shapes
    assert np.array_equal(np.concatenate([t.ravel() for t in tensors.values()]), flat)
    for tensor in tensors.values():
        tensor[...] = -1
    assert (flat == -1).all()


@given(st.integers(1, 10_000), st.integers(1, 50))
def test_shards_cover_the_vector_and_differ_by_one_at_most(size: int, shards: int) -> None:
    flat = np.arange(size, dtype=np.float32)
    pieces = shard_views(flat, shard_bounds(size, shards))
    assert np.array_equal(np.concatenate(pieces), flat)
    assert max(map(len, pieces)) - min(map(len, pieces)) <= 1


@given(shapes, st.data())
def test_cutting_a_layout_in_two_loses_no_element_and_no_name(
    shapes: list[tuple[int, ...]], data: st.DataObject
) -> None:
    layout = layout_of(shapes)
    at = data.draw(st.integers(0, layout.size))
    left, right = layout.cut(0, at), layout.cut(at, layout.size)
    assert (left.size, right.size) == (at, layout.size - at)
    with_elements = {name for name, shape in zip(layout.names, shapes, strict=True) if 0 not in shape}
    assert with_elements <= {*left.names, *right.names}


def test_a_tensor_split_by_a_cut_becomes_flat() -> None:
    layout = Layout(("w", "b"), ((2, 3), (2,)))
    assert layout.cut(0, 4).shapes == ((4,),)
    assert layout.cut(4, 8) == Layout(("w", "b"), ((2,), (2,)))


def test_a_scalar_takes_one_element() -> None:
    assert Layout(("s",), ((),)).size == 1


@pytest.mark.parametrize("shards", [1, 3, 7])
def test_shard_bounds_cover_the_vector(shards: int) -> None:
    bounds = shard_bounds(20, shards)
    assert (bounds[0], bounds[-1], len(bounds)) == (0, 20, shards + 1)

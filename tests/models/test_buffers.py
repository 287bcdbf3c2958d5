import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from chimera.core.errors import ConfigurationError, UnknownNameError
from chimera.models.buffers import merge_buffers

vectors = arrays(np.float32, 5, elements=st.floats(-1e6, 1e6, width=32))


@settings(deadline=None)
@given(st.lists(vectors, min_size=1, max_size=5))
def test_average_is_the_mean_and_first_is_the_first(buffers):
    before = [flat.copy() for flat in buffers]
    np.testing.assert_allclose(merge_buffers(buffers, "average"), np.mean(buffers, 0, np.float64), rtol=1e-6, atol=1e-3)
    merged = merge_buffers(buffers, "first")
    assert np.array_equal(merged, buffers[0])
    merged[:] = 0
    assert merge_buffers(buffers, "none") is None
    assert all(map(np.array_equal, before, buffers))


@settings(deadline=None)
@given(vectors, st.integers(1, 9))
def test_equal_buffers_average_to_themselves(flat, count):
    assert np.array_equal(merge_buffers([flat] * count, "average"), flat)


def test_errors():
    with pytest.raises(UnknownNameError, match="unknown buffer policy 'mean'; known: average, first, none"):
        merge_buffers([np.zeros(1, np.float32)], "mean")
    with pytest.raises(ConfigurationError, match=r"of one length, these are of \[1, 2\] lengths"):
        merge_buffers([np.zeros(1, np.float32), np.zeros(2, np.float32)], "first")
    with pytest.raises(ConfigurationError, match="of no lengths"):
        merge_buffers([], "average")

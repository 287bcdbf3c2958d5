"""Values are equal after packing and unpacking; any other input is one clear error."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from safetensors import safe_open

from chimera.core.errors import ConfigurationError, DataError
from chimera.core.message import Encoded
from chimera.engines.http import wire

ARRAYS = arrays_of.arrays(
    st.one_of(
        arrays_of.boolean_dtypes(), arrays_of.integer_dtypes(), arrays_of.floating_dtypes(sizes=(16, 32, 64)),
        arrays_of.complex_number_dtypes(sizes=(64, 128)), arrays_of.unicode_string_dtypes(max_len=7),
    ),
    arrays_of.array_shapes(min_dims=0, min_side=0, max_side=4),
)  # fmt: skip
PLAIN = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.complex_numbers(), ARRAYS
)
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.tuples(inner, inner), st.dictionaries(st.text(), inner, max_size=4)
    ),
    max_leaves=12,
)


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, np.ndarray):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes()
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    else:
        assert one == other or repr(one) == repr(other)


@settings(deadline=None)
@given(VALUES)
def test_a_value_comes_out_as_it_was(value: Any) -> None:
    assert_same(wire.unpack(wire.pack(value)), value)


@settings(deadline=None)
@given(VALUES, VALUES)
def test_what_is_packed_already_travels_inside_another(one: Any, other: Any) -> None:
    data = wire.pack([wire.Packed(wire.pack(one)), other, wire.Packed(memoryview(wire.pack(other)))])
    assert_same(wire.unpack(data), [one, other, other])
    first, _, last = wire.unpack(data, open_inner=False)
    assert_same([first.open(), last.open()], [one, other])


@settings(deadline=None, max_examples=300)
@given(VALUES, st.data())
def test_bytes_that_were_changed_on_the_way_are_a_value_or_a_data_error(value: Any, data: st.DataObject) -> None:
    good = wire.pack(value)
    at = data.draw(st.integers(0, len(good) - 1))
    bad = good[:at] + data.draw(st.binary(max_size=9)) + good[at + data.draw(st.integers(0, 9)) :]
    with contextlib.suppress(DataError):
        wire.unpack(bad)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_a_data_error(data: bytes) -> None:
    with pytest.raises(DataError):
        wire.unpack(data)


def test_arrays_are_read_only_aligned_views_of_the_body() -> None:
    value = {"a": np.arange(3, dtype=np.float32), "b": np.arange(5, dtype=np.int64), "c": np.ones(3, bool)}
    body = wire.pack([wire.Packed(wire.pack(value)), wire.Packed(wire.pack(value["c"])), value["b"]])
    inner, flags, numbers = wire.unpack(body)
    for array in (*inner.values(), flags, numbers):
        assert not array.flags.writeable
        assert array.flags.aligned
        assert np.shares_memory(array, np.frombuffer(body, np.uint8))


def test_the_bytes_are_a_safetensors_file(tmp_path: Any) -> None:
    file = tmp_path / "value.safetensors"
    file.write_bytes(wire.pack({"weights": np.arange(6, dtype=np.float64).reshape(2, 3), "step": 4}))
    with safe_open(file, "numpy") as opened:
        np.testing.assert_array_equal(opened.get_tensor("0"), np.arange(6.0).reshape(2, 3))
        assert msgspec.json.decode(opened.metadata()["value"]) == {"d": {"weights": {"a": 0}, "step": 4}}


def test_an_encoded_vector_travels() -> None:
    sent = Encoded("top-k", 500, (np.arange(4, dtype=np.int32), np.ones(4, np.float32)), {"scale": 2.0})
    got = wire.unpack(wire.pack([sent]))[0]
    assert (got.codec, got.size, got.meta) == ("top-k", 500, {"scale": 2.0})
    for one, other in zip(got.arrays, sent.arrays, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ((number for number in range(3)), "generator"),
        (np.array([object()]), "object"),
        ({1: 2}, "not strings"),
        (len, "builtin_function"),
        ("\ud800", "Unicode"),
    ],
    ids=["generator", "objects", "keys", "function", "surrogate"],
)
def test_what_cannot_travel_is_named(value: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        wire.pack({"inside": [value]})
    assert "\n" not in str(caught.value)


def file_of(structure: str, header: dict[str, Any] | None = None, data: bytes = b"") -> bytes:
    text = msgspec.json.encode({"__metadata__": {"value": structure}, **(header or {})})
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize(
    "bad",
    [
        struct.pack("<Q", 1 << 62) + b"{}",
        file_of('{"a": 0}'),
        file_of('{"a": 0}', {"0": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 4]}}, b"1234"),
        file_of('{"a": 0}', {"0": {"dtype": "F32", "shape": [1 << 62, 4], "data_offsets": [0, 4]}}, b"1234"),
        file_of('{"a": 0}', {"0": {"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]}}, b"1234"),
        file_of('{"a": 0}', {"0": {"dtype": "U8", "shape": [2], "data_offsets": [2, 4]}}, b"1234"),
        file_of('{"a": [0, "|O", [1]]}', {"0": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}}, b"12345678"),
        file_of('{"a": [0, "<U0", [4000000000000]]}', {"0": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}),
        file_of('[{"a": 0}, {"a": 0}]', {"0": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}, b"1"),
        file_of('{"r": ["os.system", "true"]}'),
        file_of('{"x": 1}'),
        file_of("[" * 100_000),
        file_of('{"t": [' * 900 + "]}" * 900),
        file_of('{"s": [[]]}'),
        file_of('{"r": ["encoded", {"d": {"codec": "a", "size": -1, "arrays": [], "meta": {"d": {}}}}]}'),
        file_of("1", {"7": {"dtype": "Q3", "shape": [], "data_offsets": [0, 0]}}),
        file_of("1", data=b"more"),
    ],
    ids=range(17),
)
def test_hostile_bytes_cost_nothing_and_are_a_data_error(bad: bytes) -> None:
    with pytest.raises(DataError):
        wire.unpack(bad)


def test_two_types_cannot_have_one_name() -> None:
    class Other:
        pass

    with pytest.raises(ConfigurationError, match="encoded"):
        wire.register(Other, "encoded", str, str)

"""Fuzz tests of the wire format: `wire.unpack` returns a value or raises DataError, in bounded memory."""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera.core.errors import DataError
from chimera.core.message import Encoded
from chimera.engines.http import wire
from chimera.engines.http.wire_reader import MAX_VALUES

HONEST: list[Any] = [
    {
        "call": [[1, None, 2.5, float("inf"), "x", b"yz", 1 << 80, 1j, {1, 2}, frozenset({3})], {"a": (1, [2])}],
        "returns": 2,
    },
    {"values": [wire.Packed(wire.pack([Encoded("int8", 3, (np.arange(3, dtype=np.int8),), {"scale": 0.5})]))]},
    [np.zeros((2, 0, 3)), np.array(["a", "bc"]), np.float32(2), np.array(3 + 4j), slice(1, None, 2)],
]


def tried(data: bytes) -> None:
    """Unpack a body, allowing only a DataError and the memory of the maximum number of values."""
    tracemalloc.start()
    try:
        with contextlib.suppress(DataError):
            wire.unpack(data)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 64 * len(data) + (1 << 20)


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Change, repeat, drop or add some bytes."""
    body = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at, length = rng.randrange(len(body)), rng.randint(1, 8)
        kind = rng.randrange(4)
        if kind == 0:
            body[at] = rng.randrange(256)
        elif kind == 1:
            body[at:at] = body[at : at + length]
        elif kind == 2 and len(body) > length + 1:
            del body[at : at + length]
        else:
            body[at:at] = rng.choice([b"[", b"{", b'{"t":', b"9" * length, b'"', b"-", b"e9", b"null", b"\x00"])
    return bytes(body)


def file(structure: str, tensors: dict[str, Any] | None = None, data: bytes = b"") -> bytes:
    """Return a body with this text as its structure."""
    text = json.dumps({"__metadata__": {"value": structure}, **(tensors or {})}).encode()
    return len(text).to_bytes(8, "little") + text + data


@given(st.binary(max_size=200))
def test_any_bytes_are_decoded_or_rejected(data: bytes) -> None:
    tried(data)
    tried(len(data).to_bytes(8, "little") + data)


@given(st.sampled_from(HONEST), st.randoms(use_true_random=False))
def test_mutated_messages_are_decoded_or_rejected(value: Any, rng: random.Random) -> None:
    tried(mutated(wire.pack(value), rng))


@pytest.mark.slow
def test_mutated_messages_are_decoded_or_rejected_for_minutes() -> None:
    rng, until_s = random.Random(1), time.monotonic() + float(os.environ.get("CHIMERA_FUZZ_S", "600"))
    bodies = [wire.pack(value) for value in HONEST]
    while time.monotonic() < until_s:
        tried(mutated(rng.choice(bodies), rng))


@pytest.mark.parametrize(
    "body",
    [
        file("[" * 20_000 + "]" * 20_000),
        file("[" + "[]," * (MAX_VALUES // 2) + "[]]"),
        file('{"t":[' + '{"d":{}},' * (MAX_VALUES // 3) + "0]}"),
        file('{"s":[' + ",".join(str(i * ((1 << 61) - 1)) for i in range(50_000)) + "]}"),
        file("[" + ",".join(['{"s":[' + ",".join(str(i * ((1 << 61) - 1)) for i in range(256)) + "]}"] * 2_000) + "]"),
        file('{"i":"' + "9" * 1_000_000 + '"}'),
        file('{"a":0}', {"0": {"dtype": "U8", "shape": [(1 << 62) + 1] * 100_000, "data_offsets": [0, 0]}}),
        file('{"a":[0,"<U9",' + json.dumps([(1 << 62) + 1] * 100_000) + "]}",
             {"0": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}),
        (1 << 40).to_bytes(8, "little") + b"{}",
    ],
    ids=["depth", "lists", "dictionaries", "colliding set", "colliding sets", "digits", "dimensions", "dimensions of text",
         "long header"],
)  # fmt: skip
def test_decompression_bombs_are_rejected(body: bytes) -> None:
    with pytest.raises(DataError):
        wire.unpack(body, max_values=MAX_VALUES)


@pytest.mark.long
def test_a_valid_body_without_calls_may_have_many_values() -> None:
    rows = [[0.5 + i, 1.25, 2.0] for i in range(400_000)]
    body = wire.pack({"rows": rows})
    assert wire.unpack(body) == {"rows": rows}
    with pytest.raises(DataError, match="more than 1000000 values"):
        wire.unpack(body, max_values=MAX_VALUES)


def test_packed_bodies_inside_a_body_share_its_bound() -> None:
    one = wire.Packed(file("[" + "0," * (MAX_VALUES // 3) + "0]"))
    assert len(wire.unpack(wire.pack([one, one]), max_values=MAX_VALUES)) == 2
    with pytest.raises(DataError, match="more than 1000000 values"):
        wire.unpack(wire.pack([one, one, one]), max_values=MAX_VALUES)

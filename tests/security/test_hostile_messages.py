"""Messages that no codec made: decoding refuses them, and a server goes on without them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from chimera.codecs.codec import CODECS, decode, rows_of
from chimera.core.errors import CodecError, ConfigurationError, DataError
from chimera.core.message import Encoded
from chimera.core.parameters import Layout
from chimera.training.optimizer import OptimizerSettings
from chimera.training.parameter_shard import ParameterShard
from chimera.training.rejection import Rejected

SHAPES = ((8, 8), (16,))
LAYOUT = Layout(("w", "b"), SHAPES)
SIZE = 80
GRADIENT = np.random.default_rng(0).normal(size=SIZE).astype(np.float32)
BAD_NUMBERS = (0, -1, 2**31, 2**62, math.nan, math.inf, -math.inf, 1e300, 0.5)


def messages() -> dict[str, Encoded]:
    """Return a message of each codec that needs no options."""
    made: dict[str, Encoded] = {}
    for entry in CODECS.entries():
        try:
            codec = CODECS.create(entry.name)
            made[entry.name] = codec.encode(GRADIENT.copy(), LAYOUT)
        except (ConfigurationError, NotImplementedError, CodecError):
            continue  # one that sends rows, or must be given options
    return made


MESSAGES = messages()


def mangled(message: Encoded, rng: np.random.Generator) -> Iterator[Encoded]:
    """Yield messages that differ from one in an array, a scalar or the size."""
    codec, size, arrays, meta = message.codec, message.size, message.arrays, dict(message.meta)
    yield Encoded(codec, size, (), meta)
    yield Encoded(codec, size, (*arrays, np.zeros(3, np.float32)), meta)
    yield Encoded(codec, size, arrays[::-1], meta)
    yield Encoded(codec, size, arrays, {})
    for other in (0, -1, 1 << 30, 1 << 62):
        yield Encoded(codec, other, arrays, meta)
    for key in meta:
        for number in BAD_NUMBERS:
            yield Encoded(codec, size, arrays, meta | {key: number})
    for place, array in enumerate(arrays):
        replaced: list[Any] = [
            array[:-1], array[:0], np.concatenate([array.reshape(-1)] * 3), array.reshape(1, *array.shape),
            array.astype(np.float64), array.astype(np.int8), array.astype(object), np.array(7),
            np.frombuffer(b"\xff" * array.nbytes, array.dtype).reshape(array.shape),
        ]  # fmt: skip
        for _ in range(12):
            noise = np.frombuffer(rng.bytes(array.nbytes), array.dtype).reshape(array.shape)
            replaced.append(noise)
            few = bytearray(array.tobytes())
            if few:
                few[rng.integers(len(few))] ^= 1 << rng.integers(8)
            replaced.append(np.frombuffer(bytes(few), array.dtype).reshape(array.shape))
        for other in replaced:
            yield Encoded(codec, size, (*arrays[:place], other, *arrays[place + 1 :]), meta)


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_a_mangled_message_is_decoded_to_its_size_or_refused(name: str) -> None:
    for each in mangled(MESSAGES[name], np.random.default_rng(1)):
        try:
            with np.errstate(all="ignore"):
                vector = decode(each, SIZE)
        except DataError:
            continue
        assert (vector.shape, vector.dtype) == ((SIZE,), np.float32)


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_the_rows_of_a_mangled_message_are_of_the_layout_or_refused(name: str) -> None:
    for each in mangled(MESSAGES[name], np.random.default_rng(2)):
        try:
            rows = rows_of(each, LAYOUT.rows)
        except DataError:
            continue
        assert rows is None or LAYOUT.rows.filled(rows).shape == (SIZE,)


WRONG: dict[str, Any] = {
    "nothing": None,
    "a list": [Encoded("identity", SIZE, (GRADIENT,))],
    "an array": GRADIENT,
    "another size": Encoded("identity", SIZE - 1, (GRADIENT[:-1],)),
    "a short array": Encoded("identity", SIZE, (GRADIENT[:-1],)),
    "an unknown codec": Encoded("nothing-like-it", SIZE, (GRADIENT,)),
    "a codec by path": Encoded("os:system", SIZE, (GRADIENT,)),
    "no array": Encoded("top-k", SIZE, ()),
    "NaN": Encoded("identity", SIZE, (np.full(SIZE, np.nan, np.float32),)),
}


@pytest.mark.parametrize("rule", ["mean", "median", "krum", "trimmed-mean"])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_server_steps_without_a_message_that_it_cannot_read(wrong: str, rule: str) -> None:
    def server() -> ParameterShard:
        return ParameterShard(np.zeros(SIZE, np.float32), LAYOUT, optimizer=OptimizerSettings("sgd", {"lr": 1.0}))

    good = [Encoded("identity", SIZE, (GRADIENT * factor,)) for factor in range(1, 7)]
    want, _ = server().update(*good, aggregation=rule)
    wanted = want.arrays[0].copy()
    got, applied = server().update(*good[:2], WRONG[wrong], *good[2:], aggregation=rule)
    np.testing.assert_array_equal(got.arrays[0], wanted)
    assert applied.gradients == 6
    (rejected,) = applied.rejected
    assert isinstance(rejected, Rejected)
    assert "gradient 3 of 7" in rejected.why
    assert "\n" not in rejected.why

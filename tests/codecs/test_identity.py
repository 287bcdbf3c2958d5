"""The codec that changes nothing: what is known of its messages here, and what is looked at all the same."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from chimera.codecs.codec import CODECS, decode
from chimera.core.errors import CodecError
from chimera.core.message import Encoded
from chimera.core.parameters import Layout
from chimera.engines.stored import Stored

SIZE = 6
VECTOR = np.arange(SIZE, dtype=np.float32)


def message(vector: Any) -> Encoded:
    return CODECS.create("identity").encode(vector, Layout(("w",), ((SIZE,),)))


def test_who_got_it_in_this_process_has_the_vector_itself() -> None:
    assert message(VECTOR).plain
    assert decode(message(VECTOR), SIZE) is VECTOR
    assert decode(message(VECTOR), SIZE, np.empty(SIZE, np.float32)) is VECTOR
    with pytest.raises(CodecError, match="6 elements came where 5"):
        decode(message(VECTOR), SIZE - 1)


def test_what_the_sender_knows_of_it_does_not_travel() -> None:
    came = pickle.loads(pickle.dumps(message(VECTOR)))
    assert not came.plain
    assert np.array_equal(decode(came, SIZE), VECTOR)


@pytest.mark.parametrize("other", [VECTOR.astype(np.float64), VECTOR.reshape(2, 3)])
def test_what_is_no_vector_of_float32_is_refused_as_before(other: Any) -> None:
    assert not message(other).plain
    with pytest.raises(CodecError, match="of one dimension"):
        decode(message(other), SIZE)


def test_a_vector_with_gaps_is_gathered() -> None:
    strided = np.arange(2 * SIZE, dtype=np.float32)[::2]
    assert not message(strided).plain
    assert decode(message(strided), SIZE).flags.c_contiguous
    assert np.array_equal(decode(message(strided), SIZE), strided)


def test_a_copy_that_an_engine_keeps_is_as_plain() -> None:
    kept = Stored(message(VECTOR.copy())).open()  # whoever sent it may go on to write to it
    assert kept.plain
    assert np.array_equal(decode(kept, SIZE), VECTOR)
    assert not decode(kept, SIZE).flags.writeable

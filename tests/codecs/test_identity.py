"""Tests of `identity`: which of its messages are trusted in this process, and which are checked."""

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


def test_decoding_in_the_same_process_returns_the_vector_itself() -> None:
    assert message(VECTOR).plain
    assert decode(message(VECTOR), SIZE) is VECTOR
    assert decode(message(VECTOR), SIZE, np.empty(SIZE, np.float32)) is VECTOR
    with pytest.raises(CodecError, match="6 elements came where 5"):
        decode(message(VECTOR), SIZE - 1)


def test_the_plain_flag_is_not_sent() -> None:
    came = pickle.loads(pickle.dumps(message(VECTOR)))
    assert not came.plain
    assert np.array_equal(decode(came, SIZE), VECTOR)


@pytest.mark.parametrize("other", [VECTOR.astype(np.float64), VECTOR.reshape(2, 3)])
def test_vectors_of_other_types_are_rejected(other: Any) -> None:
    assert not message(other).plain
    with pytest.raises(CodecError, match="of one dimension"):
        decode(message(other), SIZE)


def test_a_strided_vector_is_made_contiguous() -> None:
    strided = np.arange(2 * SIZE, dtype=np.float32)[::2]
    assert not message(strided).plain
    assert decode(message(strided), SIZE).flags.c_contiguous
    assert np.array_equal(decode(message(strided), SIZE), strided)


def test_a_copy_kept_by_an_engine_keeps_the_plain_flag() -> None:
    kept = Stored(message(VECTOR.copy())).open()  # the sender may write to it later
    assert kept.plain
    assert np.array_equal(decode(kept, SIZE), VECTOR)
    assert not decode(kept, SIZE).flags.writeable

"""Tests that the results of updates are sent to and from nodes unchanged, and that malformed ones are errors."""

from __future__ import annotations

import pytest

from chimera.core.errors import DataError
from chimera.engines.http import wire
from chimera.training.messages import wire_types  # noqa: F401 - it lets the values travel
from chimera.training.messages.rejection import Applied, Rejected

REJECTED = Rejected(3, 7, "the loss is nan")


@pytest.mark.parametrize(
    "value", [REJECTED, Rejected(None, 0, ""), Applied(4, 2), Applied(4, 1, (REJECTED,))], ids=repr
)
def test_a_value_is_equal_after_transfer(value: object) -> None:
    assert wire.unpack(wire.pack([value])) == [value]


def test_a_malformed_value_is_an_error() -> None:
    packed = wire.pack([REJECTED]).replace(b"rank", b"rink")
    with pytest.raises(DataError, match="Rejected"):
        wire.unpack(packed)

"""Tests of disturbances."""

from __future__ import annotations

from typing import Any

import pytest

from chimera.core.engine import Disturbance
from chimera.core.errors import ConfigurationError


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ({"what": "explode"}, "'hang', 'slow' or 'cut off', not 'explode'"),
        ({"what": "slow", "factor": 0.5}, "factor must be at least 1"),
        ({"what": "slow", "factor": float("nan")}, "factor must be at least 1"),
        ({"what": "hang", "for_s": 0.0}, "for_s must be above zero"),
        ({"what": "hang", "for_s": float("nan")}, "for_s must be above zero"),
    ],
)
def test_an_invalid_disturbance_raises_a_one_line_error(said: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        Disturbance(**said)

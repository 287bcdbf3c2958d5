"""Every registered strategy passes the conformance kit."""

from __future__ import annotations

import pytest

from chimera.strategies.strategy import STRATEGIES
from chimera.testing.test_strategies import *  # noqa: F403
from chimera.testing.training import heeds_time

pytestmark = pytest.mark.sampled(3)

AT_THEIR_OWN_PACE = {"ad-psgd", "async-parameter-server", "delay-compensated", "fed-buff", "stale-synchronous"}
MAKES_DO = {"approximate-coding"}  # with those who have answered first


@pytest.mark.long
def test_only_those_where_nobody_waits_heed_time() -> None:
    assert {entry.name for entry in STRATEGIES.entries() if heeds_time(entry.name)} == AT_THEIR_OWN_PACE | MAKES_DO

"""Every registered strategy passes the conformance kit."""

from __future__ import annotations

import pytest

from chimera.strategies.strategy import STRATEGIES
from chimera.testing.test_strategies import *  # noqa: F403
from chimera.testing.training import depends_on_speed

pytestmark = [pytest.mark.sampled(2), pytest.mark.takes("each test trains models until they have learned")]

ASYNCHRONOUS = {"ad-psgd", "async-parameter-server", "delay-compensated", "fed-buff", "stale-synchronous"}
FIRST_RESULTS = {"approximate-coding"}  # uses the workers that answer first


@pytest.mark.long
def test_only_asynchronous_strategies_and_those_that_use_first_results_depend_on_speed() -> None:
    assert {
        entry.name for entry in STRATEGIES.entries() if depends_on_speed(entry.name)
    } == ASYNCHRONOUS | FIRST_RESULTS

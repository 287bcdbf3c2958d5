"""Options of the simulated engine that a calibration sets."""

from __future__ import annotations

import numpy as np
import pytest

from chimera.calibration.stragglers import fit_stragglers
from chimera.core import call
from chimera.core.errors import ConfigurationError
from chimera.engines.simulated import Simulated
from chimera.engines.simulated.models.compute import Compute


class Worker:
    def run(self, batches: int) -> None:
        for _ in range(batches):
            call.work(samples=10)
        call.coded("int8", "encode", 100)
        call.coded("int8", "decode", 100)
        call.coded("other", "encode", 100)


def test_a_call_takes_the_time_of_its_batches_and_messages():
    costs = {"seconds_per_message": 1.0, "seconds_per_element": 0.01, "decode_per_element": 0.1}
    compute = {
        "seconds_per_call": 0.0,
        "seconds_per_sample": 0.0,
        "seconds_per_batch": 100.0,
        "codecs": {"int8": costs},
    }
    with Simulated(compute=compute) as engine:
        engine.get(engine.spawn(Worker).run(3))
        row = engine.trace()[-1]
    assert row.end_s - row.start_s == pytest.approx(3 * 100 + 1 + 1 + 10)


def test_measured_factors_are_drawn_equally_often():
    compute = Compute(straggler_factors=(1.0, 2.0, 6.0))
    drawn = [compute.call_factor(0, "worker 0", number) for number in range(3000)]
    assert np.mean(drawn) == pytest.approx(3.0, rel=0.05)
    assert set(drawn) == {1.0, 2.0, 6.0}


def test_a_distribution_with_a_heavy_tail_is_kept_as_factors_that_the_engine_accepts():
    rng = np.random.default_rng(0)
    drawn = np.where(rng.random(5000) < 0.05, 8.0, rng.uniform(0.9, 1.1, 5000))
    found = fit_stragglers(drawn)
    with Simulated(compute={"straggler_factors": list(found.factors)}):
        assert np.mean(found.factors) == pytest.approx(np.mean(drawn), rel=0.01)
    assert fit_stragglers(np.exp(rng.normal(0, 0.3, 5000))).factors == ()


@pytest.mark.parametrize(
    "options",
    [
        {"straggler_factors": (0.0,)},
        {"straggler_factors": (1.0,), "straggler_spread": 0.1},
        {"straggler_factors": (1.0,) * 5000},
        {"seconds_per_batch": -1.0},
    ],
)
def test_values_that_cannot_be_used_are_errors(options):
    with pytest.raises(ConfigurationError):
        Compute(**options)

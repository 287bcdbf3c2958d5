"""Options of the simulated engine that a calibration sets."""

from __future__ import annotations

import numpy as np
import pytest

from chimera.calibration.codec_cost import codec_costs, codec_starts, shapes_of
from chimera.calibration.measured_run import read_measured
from chimera.calibration.stragglers import Stragglers, correlation_of, fit_stragglers
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
        call.coded("int8", "reduce", 100)
        call.coded("other", "encode", 100)


@pytest.mark.parametrize(
    ("reduction", "reduce_s"), [({}, 2.0), ({"reduce_per_message": 4.0, "reduce_per_element": 0.03}, 7.0)]
)
def test_a_call_takes_the_time_of_its_batches_and_messages(reduction, reduce_s):
    costs = {"seconds_per_message": 1.0, "seconds_per_element": 0.01, "decode_per_element": 0.1, **reduction}
    compute = {
        "seconds_per_call": 0.0,
        "seconds_per_sample": 0.0,
        "seconds_per_batch": 100.0,
        "codecs": {"int8": costs},
    }
    with Simulated(compute=compute) as engine:
        engine.get(engine.spawn(Worker).run(3))
        row = engine.trace()[-1]
    assert row.end_s - row.start_s == pytest.approx(3 * 100 + 1 + 1 + 10 + reduce_s)


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
    "options", [{"straggler_spread": 0.5}, {"straggler_factors": np.linspace(1.0, 9.0, 64).tolist()}]
)
def test_calls_of_the_same_number_share_a_part_of_their_delay(options):
    compute = Compute(straggler_correlation=0.7, **options)
    drawn = np.array([[compute.call_factor(0, f"worker {i}", n) for i in range(2)] for n in range(2000)])
    assert correlation_of([drawn]) == pytest.approx(0.7, abs=0.1)
    apart = correlation_of([np.column_stack([drawn[1:, 0], drawn[:-1, 1]])])
    assert apart < 0.1
    alone = [Compute(**options).call_factor(0, "worker 0", n) for n in range(2000)]
    assert np.mean(drawn[:, 0]) == pytest.approx(np.mean(alone), rel=0.1)


@pytest.mark.parametrize("factors", [(), (0.5, 1.0, 1.5, 9.0)])
def test_the_fit_draws_stragglers_as_the_engine_does(factors):
    given = Stragglers(0.5, factors, (0.0, 0.0), 0.6)
    options = {"straggler_factors": factors} if factors else {"straggler_spread": 0.5}
    compute = Compute(straggler_correlation=0.6, **options)
    found = given.drawn(np.random.default_rng(0), 4000, 3).max(axis=1)
    engine = [max(compute.call_factor(0, f"worker {i}", n) for i in range(3)) for n in range(4000)]
    assert np.mean(found) == pytest.approx(np.mean(engine), rel=0.05)


def test_one_worker_has_no_correlation():
    assert correlation_of([np.ones((10, 1)), np.ones((10, 2))]) == 0.0


@pytest.mark.long
def test_the_cost_of_a_codec_is_measured_between_processes():
    found = codec_costs(["powersgd:rank=1", "int8"], [(5, 4), (10,)], rounds=8, work_s=1e-4)
    assert found.keys() == {"powersgd", "int8"}
    assert found["powersgd"].reduce_per_message is not None
    assert found["int8"].reduce_per_message is None  # the codec has no form for all-reduce
    for cost in found.values():
        for action in ("encode", "decode", "reduce"):
            assert 0 <= cost.seconds(action, 1, 30) < 60


def test_codecs_are_measured_with_the_tensors_of_the_model(virtual_runs):
    run = read_measured(virtual_runs[0], allow_simulated=True)
    assert sorted(shapes_of(run)) == [(10,), (10, 64)]
    (virtual_runs[0] / "weights.safetensors").rename(virtual_runs[0] / "weights")
    try:
        assert shapes_of(run) == ((26, 26),)  # a matrix with at least 650 elements
    finally:
        (virtual_runs[0] / "weights").rename(virtual_runs[0] / "weights.safetensors")


@pytest.mark.long
def test_the_start_of_a_codec_includes_its_import_where_processes_do_not_have_it():
    with_code, without = (
        codec_starts(["int8"], [(8, 8)], 1, preloaded=preloaded)["int8"] for preloaded in (True, False)
    )
    assert without > with_code + 0.05


def test_no_process_is_started_without_codecs():
    assert codec_costs([], [(30,)]) == {}
    with pytest.raises(ConfigurationError, match="no-such-codec"):
        codec_costs(["no-such-codec"], [(30,)])


@pytest.mark.parametrize(
    "options",
    [
        {"straggler_correlation": 1.0},
        {"straggler_correlation": 0.5, "straggler_factors": (2.0, 1.0)},
        {"straggler_correlation": -0.1},
        {"straggler_factors": (0.0,)},
        {"straggler_factors": (1.0,), "straggler_spread": 0.1},
        {"straggler_factors": (1.0,) * 5000},
        {"seconds_per_batch": -1.0},
    ],
)
def test_values_that_cannot_be_used_are_errors(options):
    with pytest.raises(ConfigurationError):
        Compute(**options)

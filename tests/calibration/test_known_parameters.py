"""A calibration returns the parameters with which a run was simulated, and predicts other settings of it."""

from __future__ import annotations

import numpy as np
import pytest

from calibration_truth import COMPUTE, ENGINE, SPREAD, TRUTH, experiment
from chimera.calibration.calibration import calibrate
from chimera.calibration.engine_file import read_engine, write_engine
from chimera.calibration.measured_run import read_measured
from chimera.calibration.prediction import predict


def test_the_parameters_of_the_simulation_are_within_the_uncertainty(calibrated):
    found = calibrated
    for name, truth in TRUTH.items():
        assert found.values[name] == pytest.approx(truth, abs=4 * found.errors[name] + 0.01 * truth), name
    assert found.stragglers.spread == pytest.approx(SPREAD, rel=0.15)
    assert found.stragglers.factors == ()
    assert found.stragglers.correlation < 0.2
    assert found.slow == {}


def test_delays_that_workers_share_are_found_and_the_rounds_are_those_of_the_runs(tmp_path):
    compute = {**COMPUTE, "straggler_spread": 0.6, "straggler_correlation": 0.7}
    one = experiment(rounds=250).with_table("engine", {**ENGINE, "compute": compute})
    sized = [one.with_settings([f"train.batch_size={size}"]) for size in (16, 64)]
    folders = [each.trainer(out=tmp_path / str(i)).fit().run_dir for i, each in enumerate(sized)]
    found = calibrate(folders, allow_simulated=True)
    assert found.stragglers.correlation == pytest.approx(0.7, abs=0.15)
    written = read_engine(write_engine(found, tmp_path / "engine.toml"))
    assert written.stragglers.correlation == found.stragglers.correlation
    assert found.values["latency_s"] == pytest.approx(TRUTH["latency_s"], rel=0.1)
    for each, folder in zip(sized, folders, strict=True):
        (predicted,) = predict(each, found, draws=3, rounds=100)
        real_s = read_measured(folder, allow_simulated=True).seconds_of_rounds()[0]
        assert predicted.round_s.median == pytest.approx(np.median(real_s), rel=0.08)


def test_one_batch_size_is_a_warning_and_does_not_fail(virtual_runs):
    found = calibrate(virtual_runs[:1], allow_simulated=True)
    assert any("same batch size" in warning for warning in found.warnings)
    assert found.values["seconds_per_batch"] == 0
    assert found.values["seconds_per_sample"] * 16 == pytest.approx(2e-4 + 16e-5, rel=0.1)


def test_a_prediction_agrees_with_a_run_of_the_true_model(calibrated, tmp_path):
    wanted = experiment(workers=3, batch_size=32)
    real = read_measured(wanted.trainer(out=tmp_path / "run").fit().run_dir, allow_simulated=True)
    (found,) = predict(wanted, calibrated, draws=3, rounds=60)
    assert found.round_s.low <= found.round_s.median <= found.round_s.high
    assert found.round_s.median == pytest.approx(np.median(real.seconds_of_rounds()[0]), rel=0.05)
    assert found.bytes_up == real.files.summary["bytes_up"]
    assert found.rounds == 150


def test_a_link_that_was_set_replaces_the_estimate(calibrated):
    fast, slow = predict(experiment(), calibrated, ["engine.latency_s=0.001,0.02"], draws=1, rounds=20)
    assert slow.round_s.median - fast.round_s.median == pytest.approx(2 * 0.019, rel=0.05)


def test_each_step_of_a_collective_waits_for_its_own_straggler(calibrated):
    (found,) = predict(experiment(batch_size=64), calibrated, settings=["strategy=all-reduce"], draws=2, rounds=100)
    assert found.round_p95_s.median > found.round_s.median + 1e-4
    assert found.round_s.high < 1.1 * found.round_s.low


def test_workers_that_share_processors_take_the_sum_of_their_work(calibrated):
    found = [predict(experiment(workers=4), calibrated, processors=each, draws=1, rounds=40)[0] for each in (2, 1)]
    mean_s = (5e-5 + 2e-4 + 16 * 1e-5) * np.exp(SPREAD**2 / 2)  # of a call of a worker
    assert found[1].round_s.median - found[0].round_s.median == pytest.approx(2 * mean_s, rel=0.15)
    assert "4 workers share 2 processors" in found[0].notes[0]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_a_slow_worker_and_heavy_tails_are_found(tmp_path, seed):
    factors = [*np.linspace(0.8, 1.2, 60), 4.0, 5.0, 6.0, 8.0]
    compute = {"seconds_per_sample": 1e-4, "straggler_factors": [float(f) for f in factors], "slow": {"worker 2": 3.0}}
    engine = {"name": "simulated", "seed": seed, "compute": compute}
    one = experiment(workers=3, rounds=1000).with_table("engine", engine)
    runs = [
        one.with_settings([f"train.batch_size={size}"]).trainer(out=tmp_path / str(size)).fit().run_dir
        for size in (16, 64)
    ]
    found = calibrate(runs, allow_simulated=True)
    assert found.slow == {"worker 2": pytest.approx(3.0, rel=0.05)}
    assert found.stragglers.factors[-1] == pytest.approx(8.0, rel=0.1)
    assert found.values["seconds_per_sample"] == pytest.approx(1e-4, rel=0.05)


def test_a_target_that_few_rounds_reach_is_predicted(calibrated):
    few = experiment(target={"accuracy": 0.5}, evaluate_every=1).with_settings(
        ["strategy.name=fed-avg", "strategy.local_steps=20"]
    )
    (found,) = predict(few, calibrated, draws=1, rounds=20)
    assert found.target_rounds is not None
    assert found.target_rounds <= 3
    assert found.rounds == found.target_rounds
    assert found.target_s == found.seconds


def test_a_prediction_neither_writes_checkpoints_by_time_nor_records_runs_in_trackers(calibrated, tmp_path):
    script, begun = tmp_path / "mine.py", tmp_path / "begun"
    script.write_text(
        "import pathlib\n"
        "from chimera.training.tracking.tracker import Tracker\n"
        "class Mine(Tracker):\n"
        "    def begin(self, run):\n"
        f"        pathlib.Path({str(begun)!r}).touch()\n"
        "    log = event = end = lambda *_, **__: None\n"
    )
    more = {"checkpoint_seconds": 1e-6, "track": [f"{script}:Mine"], "target": {"accuracy": 0.5}}
    plain, tracked = (predict(experiment(**each), calibrated, draws=1, rounds=20)[0] for each in ({}, more))
    assert tracked.round_s == plain.round_s
    assert not begun.exists()

"""Work after a result was received, delayed starts, and times that a prediction adds at the start of a run."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from calibration_truth import ENGINE, TRUTH, experiment
from chimera.calibration.calibration import calibrate
from chimera.calibration.cells import synchronous_rounds
from chimera.calibration.estimates import PARAMETERS
from chimera.calibration.fit import Fit
from chimera.calibration.measured_run import Calls, MeasuredRun, read_measured, until_received
from chimera.calibration.prediction import drawn_values, predict


def calls_of(start_s, work_s) -> Calls:
    zeros = np.zeros(len(start_s))
    return Calls(start_s, start_s + work_s, work_s, zeros, zeros + 16, zeros, zeros, zeros)


def prolonged(run: MeasuredRun, seconds: float) -> MeasuredRun:
    """Lengthen the calls of worker 0, without any effect on the server."""
    key = "worker 0", "gradient"
    calls = run.calls[key]
    longer = replace(calls, end_s=calls.end_s + seconds, work_s=calls.work_s + seconds)
    return replace(run, calls={**run.calls, key: longer})


def test_the_work_of_a_call_ends_when_the_server_has_all_results():
    calls = calls_of(np.array([0.0, 10.0, 20.0]), np.array([4.0, 4.0, 4.0]))
    updates = calls_of(np.array([3.0, 15.0]), np.array([2.0, 1.0]))
    found = until_received(calls, updates)
    assert found.work_s.tolist() == [3.0, 4.0, 4.0]
    assert found.after_s.tolist() == [1.0, 0.0, 0.0]


def test_work_is_unchanged_after_a_call_that_the_trace_lacks():
    updates = calls_of(np.array([3.0, 13.0, 23.0, 33.0]), np.array([2.0, 2.0, 2.0, 2.0]))
    calls = calls_of(np.array([0.0, 20.0, 30.0]), np.array([4.0, 4.0, 4.0]))  # that of the second update is missing
    assert until_received(calls, updates).work_s.tolist() == [3.0, 4.0, 4.0]


def test_the_replacement_of_a_server_is_no_part_of_the_start(virtual_runs):
    run = read_measured(virtual_runs[0], allow_simulated=True)
    began_s = run.start_s() / 4
    built = calls_of(np.array([0.0, 100.0]), np.array([began_s, 1.0]))  # the second one replaced a server that was lost
    again = replace(run, calls={**run.calls, ("server 0", "__init__"): built})
    assert again.serve_s() == pytest.approx(began_s)


def test_the_start_of_a_codec_is_no_part_of_the_start_of_a_run(virtual_runs):
    run = read_measured(virtual_runs[0], allow_simulated=True)
    late = {
        key: replace(calls, start_s=calls.start_s + 5.0, end_s=calls.end_s + 5.0) for key, calls in run.calls.items()
    }
    coded = replace(run, files=replace(run.files, summary={**run.files.summary, "codec": "int8"}), calls=late)
    plain, without, known = (
        Fit([each], starts).estimate()["seconds_to_start"]
        for each, starts in ((run, {}), (coded, {}), (coded, {"int8": 5.0}))
    )
    assert without == pytest.approx(plain + 5.0)
    assert known == pytest.approx(plain)


def test_a_call_that_lasts_after_its_result_was_received_does_not_change_the_estimates(tmp_path):
    network = {"latency_s": 0.0, "bandwidth_bytes_s": math.inf}
    one = experiment(workers=1).with_table("engine", {**ENGINE, "network": network})
    runs = []
    for size in (16, 64):
        folder = one.with_settings([f"train.batch_size={size}"]).trainer(out=tmp_path / str(size)).fit().run_dir
        summary = json.loads((folder / "summary.json").read_text())
        (folder / "summary.json").write_text(json.dumps({**summary, "engine": "local"}))
        runs.append(read_measured(folder))
    before, after = Fit(runs).estimate(), Fit([prolonged(run, 5e-5) for run in runs]).estimate()
    fixed_s = TRUTH["seconds_per_call"] + TRUTH["seconds_per_batch"]
    assert after["seconds_per_call"] + after["seconds_per_batch"] == pytest.approx(fixed_s, rel=0.1)
    assert after["seconds_per_sample"] == pytest.approx(TRUTH["seconds_per_sample"], rel=0.1)
    assert after == pytest.approx(before, rel=1e-6)


def test_workers_on_one_machine_have_the_same_speed(disguised, calibrated):
    assert calibrated.spread > 0
    assert calibrate([disguised(0), disguised(1)]).spread == 0


def test_the_delay_of_a_start_counts_as_the_delay_of_a_call(disguised):
    number = np.arange(200)
    ends_s = np.cumsum(np.where(number % 10 == 9, 1.4e-3, 1e-3))
    began_s = np.concatenate([[0.0], ends_s[:-1]]) + 1e-4
    work_s = np.full(200, 5e-4)
    calls = {
        ("worker 0", "gradient"): calls_of(began_s, work_s),
        ("worker 1", "gradient"): calls_of(began_s + np.where(number % 10 == 9, 4e-4, 0.0), work_s),
        ("server 0", "update"): calls_of(ends_s - 1e-4, np.full(200, 1e-4)),
    }
    found = synchronous_rounds(replace(read_measured(disguised(0)), calls=calls))
    assert found is not None
    late = found.work_s[found.seconds > 1.2e-3]
    assert late[:, 0] == pytest.approx(np.full(len(late), 5e-4))
    assert late[:, 1] == pytest.approx(np.full(len(late), 9e-4))
    assert np.mean(np.isclose(found.factors, 1.8)) == pytest.approx(0.05, abs=0.01)


def test_a_parameter_without_uncertainty_has_its_estimate_in_all_draws(calibrated):
    place = list(PARAMETERS).index("seconds_per_byte")
    covariance = calibrated.covariance.copy()
    covariance[place], covariance[:, place] = 0.0, 0.0
    fixed = replace(calibrated, values={**calibrated.values, "seconds_per_byte": 0.0}, covariance=covariance)
    assert {values["seconds_per_byte"] for values in drawn_values(fixed, 20, 0)} == {0.0}


def test_a_run_without_servers_does_not_wait_for_them_and_a_codec_must_be_loaded(calibrated):
    start = {**calibrated.values, "seconds_to_start": 10.0, "seconds_to_serve": 0.0}
    plain = replace(calibrated, values=start, codec_starts={})
    changed = replace(calibrated, values={**start, "seconds_to_serve": 4.0}, codec_starts={"int8": 5.0})

    def more_s(*settings: str) -> float:
        before, after = (
            predict(experiment(), each, settings=settings, draws=3, rounds=20)[0] for each in (plain, changed)
        )
        assert before.seconds is not None
        assert after.seconds is not None
        return after.seconds.median - before.seconds.median

    assert more_s() == pytest.approx(0.0, abs=0.2)
    assert more_s("strategy=all-reduce") == pytest.approx(-4.0, abs=0.2)
    assert more_s("codec=int8") == pytest.approx(5.0, abs=0.2)

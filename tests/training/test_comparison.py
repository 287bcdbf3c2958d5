"""`chimera.compare` on real small grids."""

import csv
import json
from pathlib import Path

import pytest

import chimera
from chimera.core.errors import ConfigurationError
from chimera.training.comparison.figures import rows_of
from chimera.training.comparison.running import GridCallback

TABLES = {
    "data": "digits",
    "model": "logistic-regression",
    "train": {"workers": 2, "batch_size": 8, "rounds": 30, "evaluate_every": 5, "seed": 1, "target": {"accuracy": 0.6}},
    "strategy": "parameter-server",
    "engine": "simulated",
}


class Log(GridCallback):
    def __init__(self):
        self.log = []

    def on_cells(self, cells):
        self.log.append(("cells", len(cells)))

    def on_start(self, cell):
        self.log.append(("start", cell.label))

    def on_end(self, cell, state, why):
        self.log.append(("end", cell.label, state))


def experiment(**train):
    return chimera.Experiment({**TABLES, "train": {**TABLES["train"], **train}}, "some/small.toml")


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    return chimera.compare(
        experiment(),
        {"strategy": ["parameter-server", "all-reduce"], "engine.bandwidth_bytes_s": [1e6, 1e8]},
        out=tmp_path_factory.mktemp("grid") / "out",
    )


@pytest.mark.long
def test_each_cell_has_a_row_with_its_figures(grid):
    assert grid.finished
    assert not grid.interrupted
    assert grid.varied == {
        "strategy": ["parameter-server", "all-reduce"],
        "engine.bandwidth_bytes_s": ["1000000.0", "100000000.0"],
    }
    assert [row["settings"]["strategy"] for row in grid.rows] == ["parameter-server"] * 2 + ["all-reduce"] * 2
    for row in grid.rows:
        summary = json.loads((grid.folder / row["folder"] / "summary.json").read_text())
        assert summary["strategy"] == row["settings"]["strategy"]
        assert row["metrics"] == summary["metrics"]
        assert {key: row[key] for key in ("seconds", "bytes_up", "rounds")} == {
            key: summary[key] for key in ("seconds", "bytes_up", "rounds")
        }
        for key in ("bits_per_element_up", "bits_per_element_down", "compression_ratio"):
            assert row.get(key) == summary.get(key)
        assert row["bits_per_element_up"] == 32
        assert row.get("bits_per_element_down") == (32 if row["settings"]["strategy"] == "parameter-server" else None)
        assert row["virtual"]
    assert "virtual" in " ".join(grid.notes)


def test_a_cell_equals_a_single_run_to_the_bit(grid, tmp_path):
    row = grid.rows[1]
    alone = experiment().with_settings(["engine.network.bandwidth_bytes_s=1e8"]).trainer(out=tmp_path / "alone").fit()
    cell = grid.folder / row["folder"]
    for name in ("experiment.toml", "metrics.jsonl", "events.jsonl", "trace.jsonl", "weights.safetensors"):
        assert (cell / name).read_bytes() == (alone.run_dir / name).read_bytes(), name
    summary = json.loads((cell / "summary.json").read_text())
    assert summary | {"run_dir": ""} == json.loads((alone.run_dir / "summary.json").read_text()) | {"run_dir": ""}
    assert {path.name for path in cell.iterdir()} == {path.name for path in alone.run_dir.iterdir()}


@pytest.mark.long
def test_time_to_target_is_the_time_of_the_first_evaluation_at_the_target(grid):
    for row in grid.rows:
        lines = [json.loads(line) for line in (grid.folder / row["folder"] / "metrics.jsonl").read_text().splitlines()]
        met = next(line for line in lines if line.get("accuracy", 0) >= 0.6)
        assert row["seconds_to_target"] == met["seconds"]
        assert row["bytes_to_target"] == met["bytes_up"] + met["bytes_down"]
        assert row["samples_per_worker_to_target"] == met["samples"] / 2


def test_ratios_are_relative_to_the_first_value_of_the_first_key(grid):
    slow, fast, slow_ring, fast_ring = grid.rows
    for one, base in ((slow, slow), (fast, fast), (slow_ring, slow), (fast_ring, fast)):
        assert one["baseline"] == base["cell"]
        assert one["times_sooner"] == base["seconds_to_target"] / one["seconds_to_target"]


def test_json_csv_and_text_hold_the_same_figures(grid):
    told = json.loads((grid.folder / "comparison.json").read_text())
    assert told == json.loads(json.dumps(grid.plain()))
    lines = list(csv.DictReader((grid.folder / "comparison.csv").read_text().splitlines()))
    assert [float(line["accuracy"]) for line in lines] == [row["metrics"]["accuracy"] for row in grid.rows]
    assert [line["strategy"] for line in lines] == [row["settings"]["strategy"] for row in grid.rows]
    text = grid.table().splitlines()
    assert len(text) == 5
    assert text[0].split()[:3] == ["#", "cell", "accuracy"]
    assert "virtual time" in text[0]
    assert all(row["cell"] in line for row, line in zip(grid.rows, text[1:], strict=True))
    assert grid.report.is_file()


def test_a_resumed_comparison_runs_unfinished_and_added_cells_only(grid):
    log = Log()
    again = chimera.compare(
        experiment(),
        {"strategy": ["parameter-server", "all-reduce"], "engine.bandwidth_bytes_s": [1e8]},
        out=grid.folder,
        resume=True,
        callbacks=[log],
    )
    assert log.log == [("cells", 2), *(("end", row["cell"], "finished") for row in again.rows)]
    assert [row["metrics"] for row in again.rows] == [grid.rows[1]["metrics"], grid.rows[3]["metrics"]]


def test_a_folder_with_other_content_is_rejected(grid, tmp_path):
    vary = {"strategy": ["parameter-server", "all-reduce"], "engine.bandwidth_bytes_s": [1e6, 1e8]}
    with pytest.raises(ConfigurationError, match="is not empty: resume its comparison, or choose another folder"):
        chimera.compare(experiment(), vary, out=grid.folder)
    with pytest.raises(ConfigurationError, match=r"a run with other settings \(now rounds = 40\)"):
        chimera.compare(experiment(rounds=40), vary, out=grid.folder, resume=True)
    (tmp_path / "else").write_text("")
    with pytest.raises(ConfigurationError, match="holds no comparison to resume"):
        chimera.compare(experiment(), vary, out=tmp_path, resume=True)


@pytest.mark.long
def test_several_seeds_give_means_and_standard_deviations(tmp_path):
    found = chimera.compare(experiment(), {}, repeat=[3, 5], out=tmp_path / "out")
    (row,) = found.rows
    assert [run["seed"] for run in found.runs] == row["seeds"] == [3, 5]
    one, other = (run["metrics"]["accuracy"] for run in found.runs)
    assert row["metrics"]["accuracy"] == pytest.approx((one + other) / 2)
    assert row["metrics_spread"]["accuracy"] == pytest.approx(abs(one - other) / 2**0.5)
    assert "±" in found.table()
    for run in found.runs:
        text = (found.folder / run["folder"] / "experiment.toml").read_text()
        assert text.count(f"seed = {run['seed']}\n") == 2  # of the training and of the engine


@pytest.mark.long
def test_virtual_time_runs_come_first_and_real_time_runs_run_alone(tmp_path):
    log = Log()
    found = chimera.compare(
        experiment(rounds=4),
        {"engine": ["local", "simulated"], "train.batch_size": [8, 16]},
        out=tmp_path / "out",
        callbacks=[log],
    )
    assert found.finished
    begun = [entry for entry in log.log if entry[0] != "cells"]
    assert all("simulated" in entry[1] for entry in begun[:4])
    assert [(entry[0], entry[1].split()[0]) for entry in begun[4:]] == [("start", "local"), ("end", "local")] * 2
    assert "do not compare them" in " ".join(found.notes)
    assert all("times_sooner" in row for row in found.rows if not row["virtual"])
    assert all("times_sooner" not in row for row in found.rows if row["virtual"])


@pytest.mark.long
def test_speed_up_over_worker_counts_uses_samples_per_second(tmp_path):
    found = chimera.compare(experiment(rounds=100), {"train.workers": [2, 1]}, out=tmp_path / "out")
    two, one = found.rows
    assert one["speed_up"] == 1
    assert two["speed_up"] == one["samples_per_worker_to_target"] / two["samples_per_worker_to_target"] > 1
    assert "speed-up" in found.table()
    assert "Speed-up in samples per worker" in found.report.read_text(encoding="utf-8")


@pytest.mark.long
def test_python_objects_are_passed_to_cells(tmp_path):
    numpy = pytest.importorskip("numpy")
    inputs = numpy.random.default_rng(0).normal(size=(60, 3)).astype("float32")
    data = (inputs, (inputs[:, 0] > 0).astype("int64"))
    own = chimera.Experiment({**TABLES, "data": data, "train": {"rounds": 3, "batch_size": 8}}, "own")
    found = chimera.compare(own, ["codec=identity"], out=tmp_path / "out")
    assert found.finished
    assert len(found.rows) == 1


def test_a_mean_is_none_if_a_seed_diverged_or_missed_the_target():
    common = {
        "cell": "a",
        "folder": "a",
        "settings": {"codec": "a"},
        "state": "finished",
        "virtual": True,
        "engine": "x",
    }
    moved = {"bytes_up": 1, "bytes_down": 2, "seconds": 2.0}
    runs = [
        {**common, **moved, "seed": 1, "metrics": {"loss": 1.0, "accuracy": 0.5}, "seconds_to_target": 1.0},
        {**common, **moved, "seed": 2, "metrics": {"loss": None, "accuracy": 0.7}, "seconds_to_target": None},
    ]
    (row,) = rows_of(runs, ["codec"])
    assert row["metrics"] == {"loss": None, "accuracy": pytest.approx(0.6)}
    assert (row["seconds"], row["seconds_to_target"], row["times_sooner"]) == (2.0, None, None)


def test_a_ratio_is_baseline_over_cell():
    common = {"state": "finished", "virtual": True, "metrics": {}, "bytes_down": 50}
    runs = [
        {"cell": name, "folder": name, "settings": {"codec": name}, "bytes_up": up, "seconds": seconds, **common}
        for name, up, seconds in (("identity", 150, 3.0), ("small", 0, 1.5))
    ]
    rows = rows_of(runs, ["codec"])
    assert [row["times_fewer_bytes"] for row in rows] == [1.0, 4.0]
    assert [row["times_sooner"] for row in rows] == [1.0, 2.0]


def test_a_run_without_figures_has_no_ratios():
    runs = [
        {"cell": "a", "folder": "a", "settings": {"codec": "a"}, "state": "failed", "virtual": True, "metrics": {}},
        {
            "cell": "b",
            "folder": "b",
            "settings": {"codec": "b"},
            "state": "finished",
            "virtual": True,
            "metrics": {},
            "bytes_up": 1,
            "bytes_down": 2,
            "seconds": 1.0,
        },
    ]
    assert [row["times_fewer_bytes"] for row in rows_of(runs, ["codec"])] == [None, None]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"vary": {}}, "no key varies"),
        ({"jobs": 0}, "jobs must be at least 1"),
        ({"repeat": 0}, "repeat = "),
        ({"repeat": [1, 1]}, "are the same cell"),
        ({"vary": {"strategy": ["gossip-girl"]}}, "gossip-girl: unknown strategy"),
        ({"vary": {"strategy": ["parameter-server:shard=2"]}}, "has no option 'shard'"),
        ({"vary": {"codec": ["identity", "zip"]}}, "zip: unknown codec"),
        ({"vary": {"engine": ["warp"]}}, "warp: unknown engine"),
        ({"vary": {"engine": ["local:speed=2"]}}, "has no option 'speed'"),
        ({"vary": {"engine.network.latency_s": [-1.0]}}, "latency_s=-1.0: "),
        ({"vary": {"data": ["digitz"]}}, "digitz: unknown data set"),
        ({"vary": {"model": ["mpl"]}}, "mpl: unknown model"),
        ({"vary": {"model": ["mlp:hide=[8]"]}}, "has no option 'hide'"),
        ({"vary": {"partition": ["dirichlet:alpha=high"]}}, "alpha"),
        ({"vary": {"train.optimizer": ["sgd", "madam"]}}, "optimizer=madam: "),
        ({"vary": {"train.workers": [2, 0]}}, "workers=0: workers must be at least 1"),
    ],
    ids=str,
)
def test_an_invalid_cell_is_rejected_before_the_comparison_starts(tmp_path, options, said):
    given = {"vary": {"codec": ["identity"]}, **options}
    with pytest.raises(ConfigurationError) as caught:
        chimera.compare(experiment(), out=tmp_path / "out", **given)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_new_comparison_gets_a_new_folder(tmp_path, monkeypatch):
    from chimera.training.comparison.folder import choose_folder

    monkeypatch.chdir(tmp_path)
    assert choose_folder(None, experiment(), resume=False) == Path("runs/compare-small")
    for name in ("compare-small", "compare-small-2", "compare-small-other"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    assert choose_folder(None, experiment(), resume=False) == Path("runs/compare-small-3")
    assert choose_folder(None, experiment(), resume=True) == Path("runs/compare-small-2")

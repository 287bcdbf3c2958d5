"""The speed-up over workers on the page of a comparison, from synthetic runs."""

import json
import re
import statistics

import pytest

from chimera.report.comparison_page.page import write_comparison
from chimera.report.comparison_page.scaling import speed_up
from chimera.report.comparison_page.table import as_text, columns
from chimera.training.comparison.figures import rows_of, with_speed_ups
from report.test_comparison import Page

GAIN = {1: 1.0, 2: 1.9, 4: 3.1, 8: 4.2}  # times fewer samples per worker


def compared(*, workers=(1, 2, 4, 8), seeds=(0, 1, 2), codecs=(), missed=(), failed=(), target=True):
    """Return a comparison whose runs need 96,000 samples with one worker, slightly more with each seed."""
    runs = []
    for codec in codecs or (None,):
        for count in workers:
            for seed in seeds:
                settings = {"train.workers": str(count)} | ({"codec": codec} if codec else {})
                label = " · ".join(filter(None, (f"workers={count}", codec)))
                run = {"cell": label, "folder": label, "settings": settings, "seed": seed, "engine": "local"}
                run |= {"virtual": False, "metrics": {"loss": 8.4}, "state": "finished"}
                run |= {"seconds": 10.0, "bytes_up": 10, "bytes_down": 10}
                needed = 96_000 / GAIN[count] * (1 + 0.1 * seed * (count > 1))
                if target:
                    run["samples_per_worker_to_target"] = None if (count, seed) in missed else needed
                if (count, seed) in failed:
                    run = {key: run[key] for key in ("cell", "folder", "settings", "seed", "engine", "virtual")}
                    run |= {"state": "failed", "metrics": {}}
                runs.append(run)
    runs = with_speed_ups(runs)
    varied = {"train.workers": [str(count) for count in workers]} | ({"codec": list(codecs)} if codecs else {})
    wanted = {"loss": 8.4} if target else None
    rows = rows_of(runs, list(varied))
    return {"experiment": "a.toml", "varied": varied, "target": wanted, "notes": [], "rows": rows, "runs": runs}


def page_of(folder, comparison):
    (folder / "comparison.json").write_text(json.dumps(comparison), encoding="utf-8")
    return Page(write_comparison(folder).read_text(encoding="utf-8"))


def test_the_speed_up_of_a_run_is_relative_to_the_fewest_workers_with_the_same_seed():
    for run in compared()["runs"]:
        count = int(run["settings"]["train.workers"])
        assert run["speed_up"] == pytest.approx(GAIN[count] / (1 + 0.1 * run["seed"] * (count > 1)))
    for run in compared(workers=(8, 2, 4))["runs"]:
        assert run["speed_up"] == pytest.approx(GAIN[int(run["settings"]["train.workers"])] / GAIN[2])


def test_the_line_goes_through_the_medians_and_the_ideal_line_starts_at_one():
    ((chart, note),) = speed_up(compared())
    (series,) = chart.series
    assert series.x.tolist() == [1, 2, 4, 8]
    assert series.y.tolist() == [pytest.approx(gain / (1.1 if n > 1 else 1)) for n, gain in GAIN.items()]
    assert sorted(series.samples[0].tolist()) == sorted([1.0, 2.0, 4.0, 8.0] * 3)
    assert [end.tolist() for end in chart.ideal] == [[1, 8], [1, 8]]
    assert "with one worker" in note
    ((chart, note),) = speed_up(compared(workers=(2, 4, 8), seeds=(0,)))
    assert chart.series[0].samples is None
    assert [end.tolist() for end in chart.ideal] == [[2, 8], [1, 4]]
    assert "with 2 workers" in note


def test_the_page_has_the_chart_with_a_point_for_each_seed_and_the_ideal_line(tmp_path):
    page = page_of(tmp_path, compared())
    assert "Speed-up in samples per worker to target, over workers" in page.text
    kinds = [attributes.get("class") for _, attributes in page.tags]
    assert kinds.count("dot hollow c0 d0") == 12
    assert kinds.count("ideal") == 2  # in the chart, and in its legend
    assert not re.search(r"\bnan\b", " ".join(attributes.get("d") or "" for _, attributes in page.tags))


def test_the_table_shows_samples_per_worker_and_the_mean_speed_up():
    comparison = compared()
    found = {column.heading: column.texts for column in columns(comparison)}
    assert found["samples per worker to target"][0] == "96,000"
    gains = [1.9 / (1 + 0.1 * seed) for seed in range(3)]
    assert found["speed-up"][:2] == [
        "1×",
        f"{statistics.fmean(gains):.2f}× ± {statistics.stdev(gains):.2g}",
    ]
    assert "speed-up" in as_text(comparison)


def test_cells_are_drawn_over_samples_per_worker_too(tmp_path):
    comparison = compared(seeds=(0,))
    for run in comparison["runs"]:
        (tmp_path / run["folder"]).mkdir()
        lines = [
            {"round": n, "samples": n * 5000, "seconds": n, "bytes_up": n, "bytes_down": n, "loss": 9 - n / 10}
            for n in (1, 6)
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / run["folder"] / "metrics.jsonl").write_text(text, encoding="utf-8")
    page = page_of(tmp_path, comparison)
    assert "Loss on the test set, over samples per worker" in page.text
    label = next(
        a["aria-label"] for tag, a in page.tags if tag == "svg" and "Samples per worker" in a.get("aria-label", "")
    )
    assert label.startswith("loss over Samples per worker (thousands): workers=1 8.4 at 30; workers=2 8.4 at 15;")


def test_each_combination_of_other_settings_has_its_own_line():
    ((chart, _),) = speed_up(compared(codecs=("identity", "int8")))
    assert [series.label for series in chart.series] == ["identity", "int8"]


def test_a_cell_that_missed_the_target_has_no_speed_up_and_is_named(tmp_path):
    comparison = compared(missed={(8, seed) for seed in range(3)})
    ((chart, _),) = speed_up(comparison)
    assert chart.series[0].x.tolist() == [1, 2, 4]
    assert [row["speed_up"] is None for row in comparison["rows"]] == [False, False, False, True]
    assert {column.heading: column.texts for column in columns(comparison)}["samples per worker to target"][
        3
    ] == "never"
    assert "Not every run reached the target: all." in page_of(tmp_path, comparison).text


@pytest.mark.parametrize("how", ["missed", "failed"])
def test_without_the_fewest_workers_there_is_no_speed_up(tmp_path, how):
    """The next larger number of workers does not become the baseline."""
    comparison = compared(**{how: {(1, seed) for seed in range(3)}})
    assert not any(run.get("speed_up") for run in comparison["runs"])
    assert "Speed-up" not in page_of(tmp_path, comparison).text


def test_there_is_no_speed_up_without_a_target_or_if_workers_do_not_vary(tmp_path):
    comparison = compared(target=False)
    assert speed_up(comparison) == []
    assert "speed-up" not in page_of(tmp_path, comparison).text.lower()
    runs = [{"settings": {"codec": "int8"}, "samples_per_worker_to_target": 5.0}]
    assert with_speed_ups(runs) == runs

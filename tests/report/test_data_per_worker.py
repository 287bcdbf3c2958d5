"""The section of the report on what each worker holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chimera.core.worker_counts import MAX_LABELS
from chimera.report.data_per_worker import data_per_worker
from chimera.report.run_files import read_run

WORKERS = [
    {"worker": "worker 0", "samples": 30, "classes": 2, "counts": [10, 20]},
    {"worker": "worker 1", "samples": 60, "classes": 1, "counts": [0, 60]},
]
DATA: dict[str, Any] = {"workers": WORKERS, "labels": ["cat", "dog & <b>"], "skew": 0.25}


def section(runs: Any, data: Any) -> str:
    folder: Path = runs.make()
    (folder / "data.json").write_text(json.dumps(data), encoding="utf-8")
    return data_per_worker(read_run(folder))


def test_bars_are_as_long_as_the_counts(runs: Any) -> None:
    html = section(runs, DATA)
    assert html.count("<i class='label1' style='width:") == 2
    for width in ("16.67%", "33.33%", "100.00%"):
        assert f"style='width:{width}'" in html
    assert "worker 0, cat: 10 of 30" in html
    assert "<b>" not in html
    assert "At the start of the run, 2 workers: 30 to 60 samples each, median 60. Label skew 0.25" in html


def test_a_run_without_the_file_has_no_section(runs: Any) -> None:
    assert data_per_worker(read_run(runs.make())) == ""


def test_many_workers_and_labels_are_cut(runs: Any) -> None:
    names = [f"class {place}" for place in range(MAX_LABELS)]
    worker = {"samples": 63, "classes": 60, "counts": [3] * (MAX_LABELS + 1)}
    workers = [{"worker": f"worker {rank}", **worker} for rank in range(1000)]
    html = section(runs, {"workers": workers, "labels": names, "more_labels": 40, "skew": 0.0})
    assert "At the start of the run, 1,000 workers: 63 samples each; the first 40 workers are shown" in html
    assert html.count("<tr>") == 41
    assert "40 others" in html


@pytest.mark.parametrize(
    "broken",
    [{"workers": 3}, {"workers": [{**WORKERS[0], "counts": [1]}]}, {"workers": [{**WORKERS[0], "samples": -1}]}],
)
def test_an_invalid_file_is_left_out(runs: Any, broken: Any) -> None:
    assert section(runs, DATA | broken) == ""

"""The section of the report on nodes that have the rows of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chimera.report.html import page
from chimera.report.nodes import nodes
from chimera.report.run_files import read_run

DATA = {
    "nodes": [
        {"node": "north <b>", "rows": 80, "metrics": "own"},
        {"node": "south", "rows": None, "metrics": "merged"},
    ],
    "columns": [{"name": "age", "categories": None}],
    "classes": ["no", "yes"],
    "scaled_by": "declared constants",
}


def folder(runs: Any, data: Any) -> Path:
    rows = [
        {
            "round": 1,
            "samples": 10,
            "seconds": 1.0,
            "loss": 0.5,
            "clients": {"north <b>": {"accuracy": 0.75, "loss": 0.5}},
        }
    ]
    made: Path = runs.make(metrics=rows)
    (made / "data.json").write_text(json.dumps(data), encoding="utf-8")
    return made


def test_figures_that_nodes_give_are_in_the_table(runs: Any) -> None:
    html = nodes(read_run(folder(runs, DATA)))
    assert '<td>north &lt;b&gt;</td><td class="n">80</td><td class="n">0.75</td>' in html
    assert '<td>south</td><td class="n">not given</td><td class="n">not given</td>' in html
    assert "1 column: age. 2 classes: no, yes. columns are scaled by: declared constants" in html
    assert "<h2>Nodes</h2>" in page(read_run(folder_again(runs)))


def folder_again(runs: Any) -> Path:
    return Path(runs.root / "a-run")


@pytest.mark.parametrize("data", [{}, {"nodes": 3}, {"nodes": [3, {"node": 4}], "columns": [1], "classes": 3}])
def test_other_contents_of_the_file_are_no_error(runs: Any, data: Any) -> None:
    assert "Traceback" not in page(read_run(folder(runs, data)))

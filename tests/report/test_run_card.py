"""A run in a notebook: a table and curves, from files that may hold anything."""

from __future__ import annotations

import base64
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

import chimera
from chimera.report.run_card import run_card


@pytest.fixture
def run(tmp_path: Path) -> chimera.Run:
    return chimera.Trainer(
        "logistic-regression", "digits", engine="simulated", rounds=6, evaluate_every=2, out=tmp_path / "a<b>&c"
    ).fit()


def test_it_has_the_figures_and_a_chart_for_each_metric(run: chimera.Run) -> None:
    page = run._repr_html_()
    cells = dict(re.findall(r"<tr><th[^>]*>([^<]*)</th><td[^>]*>([^<]*)</td></tr>", page))
    assert cells["rounds"] == "6"
    assert cells["stopped by"] == "rounds"
    assert float(cells["accuracy, test set"]) == pytest.approx(run.metrics["accuracy"], abs=1e-3)
    charts = re.findall(r'<img alt="([^"]*)"[^>]* src="data:image/svg\+xml;base64,([^"]*)"', page)
    assert [alt.partition(" over ")[0] for alt, _ in charts] == ["Loss", "Accuracy, test set"]
    for _, data in charts:
        drawn = ElementTree.fromstring(base64.b64decode(data))
        assert drawn.tag == "{http://www.w3.org/2000/svg}svg"
        assert len(drawn.findall(".//{*}path")) > 5


def test_texts_are_escaped(run: chimera.Run) -> None:
    metrics = run.run_dir / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"accuracy"', '"<script>x</script>"'))
    summary = run.run_dir / "summary.json"
    summary.write_text(summary.read_text().replace('"accuracy"', '"<script>x</script>"'))
    page = run_card(run.run_dir)
    assert "a&lt;b&gt;&amp;c" in page
    assert "&lt;script&gt;" in page
    assert "<script" not in page
    for data in re.findall(r"base64,([^\"]*)", page):
        assert b"<script" not in base64.b64decode(data)


def test_a_run_without_its_folder_is_one_line(run: chimera.Run) -> None:
    shutil.rmtree(run.run_dir)
    assert run._repr_html_().startswith("<code>&lt;Run ")

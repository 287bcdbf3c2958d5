"""The page and the table of a comparison, from synthetic folders."""

import json
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera.core.errors import ConfigurationError
from chimera.report.comparison_page.page import pareto_front, write_comparison
from chimera.report.comparison_page.table import as_text
from chimera.training.comparison.comparison import Comparison
from chimera.training.privacy.guarantee import SEEDED
from report import comparisons

FLOATS = st.floats(0.1, 10, allow_nan=False)


class Page(HTMLParser):
    """A parser that collects tags and text, and checks that each element is closed."""

    void = frozenset({"meta", "br", "link", "img"})

    def __init__(self, html):
        super().__init__()
        self.tags, self.words, self._open = [], [], []
        self.feed(html)
        assert not self._open

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in self.void:
            self._open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join("".join(self.words).split())


def page_of(folder, **options):
    html = write_comparison(comparisons.make(folder, **options)).read_text(encoding="utf-8")
    return html, Page(html)


@pytest.mark.parametrize("options", [{"cells": 1}, {"cells": 2}, {"cells": 12}, {"cells": 6, "bandwidths": (1e7, 1e8)}])
def test_the_page_is_complete_and_self_contained(tmp_path, options):
    html, page = page_of(tmp_path, **options)
    assert not re.search(r"https?://|//[a-z]|@import|url\(", html)
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in page.tags}
    assert "NaN" not in html
    assert "nan" not in re.findall(r'd="[^"]*"', html)
    assert "prefers-color-scheme: dark" in html


def test_each_cell_links_to_its_report(tmp_path):
    _, page = page_of(tmp_path, cells=3)
    links = [attributes["href"] for tag, attributes in page.tags if tag == "a"]
    assert links == [f"cell%20{i}/report.html" for i in range(3)]


def test_twelve_cells_can_be_distinguished_and_more_are_in_the_table_only(tmp_path):
    _, page = page_of(tmp_path, cells=12, bandwidths=(1e7, 1e8))
    looks = {attributes["class"] for tag, attributes in page.tags if attributes.get("class", "").startswith("series ")}
    assert len(looks) == 12
    assert "12 more cells in the table only." in page.text
    assert len([tag for tag, attributes in page.tags if tag == "tr"]) == 25


def test_time_to_target_over_bandwidth_has_a_line_per_codec_and_names_runs_that_missed_the_target(tmp_path):
    _, page = page_of(tmp_path, cells=8, bandwidths=(1e7, 1e8))
    titles = "".join(page.words)
    assert "Virtual time to target (s, log scale), over bandwidth" in titles
    assert "Not every run reached the target: random-k:ratio=0.01." in page.text
    assert "all else equal" in page.text


def test_without_a_target_the_chart_shows_the_time_of_the_run(tmp_path):
    _, page = page_of(tmp_path, cells=2, bandwidths=(1e7, 1e8), target=None)
    assert "Virtual time of the run (s, log scale), over bandwidth" in page.text
    assert "to target" not in page.text


def test_a_failed_cell_is_shown_with_its_escaped_error(tmp_path):
    html, page = page_of(tmp_path, cells=3, failed=(1,))
    assert "failed" in page.text
    assert "the codec's <vector> is too long" in page.text
    assert "<vector>" not in html
    assert "2 of 3 finished" in page.text


def test_a_comparison_of_failed_runs_has_a_table_only(tmp_path):
    _, page = page_of(tmp_path, cells=2, failed=(0, 1))
    assert "0 of 2 finished" in page.text
    assert not [tag for tag, _ in page.tags if tag == "svg"]


def test_real_seconds_are_not_called_virtual(tmp_path):
    _, page = page_of(tmp_path, cells=2, virtual=False)
    assert "virtual" not in page.text.lower()


def test_a_page_of_real_and_virtual_runs_marks_the_virtual_seconds_and_names_both_on_its_axes(tmp_path):
    path = comparisons.make(tmp_path, cells=2, bandwidths=(1e7, 1e8)) / "comparison.json"
    told = json.loads(path.read_text())
    for row in told["rows"][:2]:
        row |= {"virtual": False, "engine": "local"}
    path.write_text(json.dumps(told))
    page = Page(write_comparison(tmp_path).read_text(encoding="utf-8"))
    assert "Virtual time (" not in page.text
    assert "Time, real or virtual (s)" in page.text
    lines = as_text(told).splitlines()
    assert ["virtual" in line for line in lines] == [False, False, False, True, True]


def test_a_point_has_a_tooltip_with_its_cell(tmp_path):
    html, _ = page_of(tmp_path, cells=2)
    assert re.search(r"<title>cast: 0\.9\d+ at [\d.]+ \(Data moved, up and down \(MB\)\)</title>", html)


def test_the_folder_of_a_cell_that_is_a_link_to_another_place_is_not_read(tmp_path):
    folder = tmp_path / "grid"
    comparisons.make(folder, cells=2)
    (folder / "cell 0").rename(tmp_path / "elsewhere")
    (folder / "cell 0").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match="is a link out of its folder"):
        write_comparison(folder)


def test_a_folder_without_a_comparison_is_rejected(tmp_path):
    with pytest.raises(ConfigurationError, match="is not the folder of a comparison"):
        write_comparison(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": 3}, "Expected array, got int, for rows"),
        ({"varied": ["codec"]}, "Expected table, got array, for varied"),
        ({"target": {"accuracy": "high"}}, "Expected float, got str"),
        ({"notes": None}, "Expected array, got null"),
        ({"runs": [{"cell": "a"}]}, "missing required field folder"),
        ({"runs": [{"cell": "a", "folder": "a", "settings": {}, "state": "finished", "seconds": "9"}]}, "got str"),
        ([], "Expected table, got array"),
    ],
    ids=str,
)
def test_a_comparison_with_wrong_types_is_rejected_in_one_line(tmp_path, change, message):
    path = comparisons.make(tmp_path, cells=2) / "comparison.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change} if isinstance(change, dict) else change))
    with pytest.raises(ConfigurationError, match=f"is not the folder of a comparison: .*{message}") as caught:
        Comparison.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_text_in_the_place_of_epsilon_is_shown(tmp_path):
    path = comparisons.make(tmp_path, cells=2) / "comparison.json"
    content = json.loads(path.read_text())
    for row in (*content["rows"], *content["runs"]):
        row["metrics"]["epsilon"] = SEEDED
    path.write_text(json.dumps(content))
    assert SEEDED in Page(write_comparison(tmp_path).read_text(encoding="utf-8")).text
    assert {row["metrics"]["epsilon"] for row in Comparison.load(tmp_path).rows} == {SEEDED}


@given(st.lists(st.tuples(FLOATS, FLOATS), min_size=1, max_size=30), st.booleans())
def test_the_pareto_front_has_all_points_that_are_not_dominated(points, more_is_better):
    sign = 1 if more_is_better else -1
    x, y = zip(*points, strict=True)
    kept = pareto_front(x, y, more_is_better=more_is_better)
    for i, (a, b) in enumerate(points):
        dominated = any(
            (c <= a and sign * d >= sign * b) and (c < a or sign * d > sign * b)
            for j, (c, d) in enumerate(points)
            if j != i
        )
        assert (i in kept) is not dominated
    assert [x[i] for i in kept] == sorted(x[i] for i in kept)

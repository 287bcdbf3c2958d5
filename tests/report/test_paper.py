"""Figures and tables of a comparison for papers, and mean curves over seeds."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import chimera
from chimera.core.errors import ConfigurationError
from chimera.report.comparison_page.page import write_comparison
from chimera.report.mean_curves import mean_curve, points
from chimera.training.comparison.figures import rows_of

SEEDS = (1, 2, 3)


def metrics(codec: str, seed: int) -> Iterator[dict[str, float]]:
    """Yield rows as a run records them."""
    size = 100.0 if codec == "identity" else 50.0
    for round_ in range(0, 25, 5):
        moved = size * round_
        yield {
            "round": round_,
            "seconds": 0.1 * round_,
            "samples": 32 * round_,
            "bytes_up": moved,
            "bytes_down": moved,
        } | {
            "accuracy": 1 - 0.5**round_ - 0.01 * seed,
            "loss": 1.0 / (1 + round_) + 0.01 * seed,
        }


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> chimera.Comparison:
    """Return a comparison of two codecs with three seeds each, as `chimera.compare` writes it."""
    folder, runs = tmp_path_factory.mktemp("compare"), []
    for codec, seed in itertools.product(("identity", "cast:to=bf16"), SEEDS):
        rows = list(metrics(codec, seed))
        name = f"{codec.replace(':', '-')}-{seed}"
        (folder / name).mkdir()
        (folder / name / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        final = {key: rows[-1][key] for key in ("seconds", "samples", "bytes_up", "bytes_down")}
        runs.append(
            {"cell": codec, "folder": name, "settings": {"codec": codec}, "seed": seed, "state": "finished"}
            | {"engine": "simulated", "virtual": True, "rounds": 20, **final}
            | {"metrics": {key: rows[-1][key] for key in ("accuracy", "loss")}}
        )
    varied = {"codec": ["identity", "cast:to=bf16"]}
    made = chimera.Comparison(folder, "digits.toml", varied, None, rows_of(runs, list(varied)), runs)
    (folder / "comparison.json").write_text(json.dumps(made.plain()))
    write_comparison(folder)
    return made


def test_the_mean_of_equal_curves_is_the_curve_without_a_band():
    curve = np.array([[1.0, 4.0], [2.0, 3.0], [4.0, 1.0]])
    mean = mean_curve([curve, curve])
    np.testing.assert_array_equal(np.column_stack([mean.x, mean.mean]), curve)
    assert (mean.seeds, *mean.deviation) == (2, 0, 0, 0)


def test_the_mean_covers_what_all_seeds_cover_and_is_linear_between_points():
    mean = mean_curve([np.array([[1.0, 0.0], [3.0, 2.0]]), np.array([[2.0, 3.0], [5.0, 3.0]]), np.empty((0, 2))])
    np.testing.assert_array_equal(mean.x, [2, 3])
    np.testing.assert_allclose(mean.mean, [2.0, 2.5])
    np.testing.assert_allclose(mean.deviation, [np.std([1, 3], ddof=1), np.std([2, 3], ddof=1)])


def test_one_seed_has_no_deviation_and_no_points_have_no_curve():
    assert mean_curve([np.array([[1.0, 2.0]])]).deviation.tolist() == [0.0]
    assert mean_curve([np.empty((0, 2))]) is None
    assert len(points([{"bytes": 1, "loss": float("nan")}, {"bytes": 0, "loss": 1.0}], ["bytes"], "loss")) == 0


def test_the_page_shows_the_mean_over_all_seeds(comparison):
    page = comparison.report.read_text(encoding="utf-8")
    means = "Curves are means over the seeds in their common range, or one seed if there is none"
    assert f"{means}; bands show one standard deviation over the seeds." in page
    assert page.count('<path class="band c0 d0"') == 4  # accuracy and loss, over bytes and time


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["pdf", "svg", "png"])
def test_a_figure_is_written_in_the_format_of_its_suffix(comparison, tmp_path, kind):
    path = tmp_path / f"figure.{kind}"
    caption = comparison.plot(path, x="bytes", y="accuracy", labels={"identity": "float32"}, size="page")
    assert caption == (
        "Accuracy on the test set (a share of 1) over data moved: mean over 3 seeds; "
        "bands show one standard deviation over the seeds."
    )
    assert path.read_bytes()[:4] in (b"%PDF", b"<?xm", b"\x89PNG")


def test_the_figure_has_the_labels_and_the_size(comparison, tmp_path):
    comparison.plot(tmp_path / "figure.svg", x="seconds", labels={"cast:to=bf16": "bfloat16"}, size=(4.0, 2.0))
    text = (tmp_path / "figure.svg").read_text(encoding="utf-8")
    assert re.search(r'width="288pt" height="144pt"', text)
    assert "<!-- bfloat16 -->" in text
    assert "<!-- Virtual time" in text


def test_a_notebook_shows_the_figures_as_a_table(comparison: chimera.Comparison) -> None:
    page = comparison._repr_html_()
    assert page.count("<tr>") == 1 + len(comparison.rows)
    assert all(f"<td>{row['cell']}</td>" in page for row in comparison.rows)
    first = replace(comparison, rows=[{**comparison.rows[0], "cell": "<script>"}])
    assert "<td>&lt;script&gt;</td>" in first._repr_html_()


def test_a_loaded_comparison_draws_the_same(comparison, tmp_path):
    again = chimera.Comparison.load(comparison.folder)
    assert again.table() == comparison.table()
    assert again.plot(tmp_path / "a.png") == comparison.plot(tmp_path / "b.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_a_latex_table_has_only_latex(comparison):
    table = comparison.latex(columns=["cell", "accuracy", "up"], labels={"cast:to=bf16": "50 % of_bits & more"})
    lines = table.splitlines()
    assert lines[0] == r"\begin{tabular}{lrr}"
    assert lines[2] == r"cell & accuracy & up \\"
    assert lines[5].startswith(r"50 \% of\_bits \& more & ")
    assert r" $\pm$ " in lines[4]
    assert lines[-1] == r"\end{tabular}"
    assert all(line.count(" & ") == 2 for line in (lines[2], *lines[4:6]))


def test_a_markdown_table_has_all_columns_by_default(comparison):
    head, ends, *rows = comparison.markdown().splitlines()
    assert head.startswith("| cell | accuracy | loss |")
    assert ends.startswith("| --- | ---: |")
    assert len(rows) == 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c, path: c.plot(path / "x.doc"), "is of no format known by its ending"),
        (lambda c, path: c.plot(path / "x.pdf", y="acuracy"), "there is no metric 'acuracy'; did you mean 'accuracy'?"),
        (lambda c, path: c.plot(path / "x.pdf", x="byte"), "x is one of bytes, seconds, rounds, samples, not 'byte'"),
        (lambda c, path: c.plot(path / "x.pdf", size="poster"), "size is 'column' or 'page', or a width and a height"),
        (lambda c, path: c.plot(path / "x.pdf", labels={"int8": "x"}), "there is no cell 'int8'"),
        (lambda c, path: c.latex(columns=["acc"]), "there is no column 'acc'"),
        (lambda c, path: chimera.Comparison.load(path), "is not the folder of a comparison"),
    ],
)
def test_mistakes_are_named(comparison, tmp_path, call, message):
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        call(comparison, tmp_path)
    assert not list(Path(tmp_path).iterdir())

"""Tests of untrusted run folders: no link leaves the folder; no value breaks a report, a table or a resumed run."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chimera.core.errors import ConfigurationError
from chimera.embeddings import vectors_of
from chimera.inference import models
from chimera.report.html import write_report
from chimera.training.comparison.execution import compare
from chimera.training.experiment.experiment import Experiment

EXPERIMENT = """
[data]
name = "iris"
[model]
name = "logistic-regression"
[train]
workers = 1
rounds = 2
checkpoint_every = 1
[engine]
name = "simulated"
"""
SECRET = '{"secret": "the secret of another file"}\n'


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run."""
    top = tmp_path_factory.mktemp("finished")
    (top / "experiment.toml").write_text(EXPERIMENT)
    return Experiment.load(top / "experiment.toml").trainer(out=top / "run").fit().run_dir


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """Return a copy of it, to be changed."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A file outside of the folder, which is as it was afterwards."""
    path = tmp_path / "mine"
    path.write_text(SECRET)
    yield path
    assert path.read_text() == SECRET


def resumed(folder: Path) -> Any:
    """Resume a run."""
    return Experiment.load(folder / "experiment.toml").trainer(out=folder, resume=True).fit()


def linked(path: Path, target: Path) -> None:
    """Put a link in the place of a file."""
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


FILES = (
    *("experiment.toml", "metrics.jsonl", "events.jsonl", "trace.jsonl"),
    *("summary.json", "environment.json", "data.json"),
)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("far", [True, False], ids=["absolute", "relative"])
def test_a_report_reads_no_file_through_a_link(name: str, far: bool, folder: Path, outside: Path) -> None:
    linked(folder / name, outside if far else Path("..") / outside.name)
    text = write_report(folder).read_text(encoding="utf-8")
    assert "the secret of another file" not in text
    assert f"{name} is a link out of the folder" in text


def test_word_vectors_are_not_read_through_a_link(folder: Path, outside: Path) -> None:
    (folder / "embeddings.csv").write_text("1 2\n2 3\n3 5\n")
    linked(folder / "vocabulary.txt", outside)
    assert "the secret" not in write_report(folder).read_text(encoding="utf-8")


def test_links_within_and_to_the_folder_are_followed(folder: Path) -> None:
    (folder / "metrics.jsonl").rename(folder / "real.jsonl")
    (folder / "metrics.jsonl").symlink_to("real.jsonl")
    (folder.parent / "link").symlink_to(folder)
    assert "is a link out" not in write_report(folder.parent / "link").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["experiment.toml", "signature.json", "weights.safetensors"])
def test_a_model_is_not_served_through_a_link(name: str, folder: Path, outside: Path) -> None:
    linked(folder / name, outside)
    with pytest.raises(ConfigurationError, match="is a link out of its folder") as caught:
        models.load({"kind": "chimera", "run": str(folder)})
    assert str(folder / name) in str(caught.value)


@pytest.mark.parametrize("name", ["embeddings.csv", "weights.safetensors", "signature.json"])
def test_embedding_vectors_are_not_read_through_a_link(name: str, folder: Path, outside: Path) -> None:
    linked(folder / name, outside)
    with pytest.raises(ConfigurationError, match="is a link out of its folder"):
        vectors_of(folder)


@pytest.mark.parametrize("name", ["metrics.jsonl", "events.jsonl", "trace.jsonl", "checkpoints"])
def test_a_resumed_run_writes_no_file_through_a_link(name: str, folder: Path, outside: Path) -> None:
    linked(folder / name, outside.parent if name == "checkpoints" else outside)
    with pytest.raises(ConfigurationError, match="is a link out of its folder"):
        resumed(folder)


UNFINISHED = ("weights.safetensors.part", "summary.json.part", "checkpoints/round-000000003.safetensors.part")


@pytest.mark.parametrize("name", UNFINISHED)
def test_an_unfinished_file_that_is_a_link_is_not_written_through(name: str, folder: Path, outside: Path) -> None:
    linked(folder / name, outside)
    experiment = folder / "experiment.toml"
    experiment.write_text(experiment.read_text().replace("rounds = 2", "rounds = 3"))
    assert resumed(folder).cost.rounds == 3
    assert not (folder / name).is_symlink()


@pytest.mark.parametrize("content", [b"[" * 100, b"{}\n[1]\n", b"\xff\n", b"{"], ids=["deep", "list", "bytes", "cut"])
def test_resuming_with_a_damaged_history_raises_a_one_line_error(content: bytes, folder: Path) -> None:
    path = folder / "metrics.jsonl"
    path.write_bytes(content.ljust(path.stat().st_size))
    with pytest.raises(ConfigurationError, match="is damaged") as caught:
        resumed(folder)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


HUGE = [10**400, 1e308, -1e308, 5e-324, float("inf"), "<script>alert(1)</script>", "\ud800", None, [], {}, True]


@pytest.mark.parametrize("name", FILES[1:])
def test_no_value_in_a_file_breaks_the_report(name: str, folder: Path) -> None:
    lines = (folder / name).read_text().splitlines() or ['{"event": "worker lost", "actor": "worker 0", "seconds": 1}']
    row = json.loads("".join(lines) if name.endswith(".json") else lines[0])
    kept = [] if name.endswith(".json") else lines
    for key in [*row, "metrics"]:
        for value in HUGE:
            (folder / name).write_text("\n".join([*kept, json.dumps({**row, key: value})]) + "\n")
            assert "<script>" not in write_report(folder).read_text(encoding="utf-8")


def test_half_a_character_in_a_label_does_not_break_the_report(folder: Path) -> None:
    data = json.loads((folder / "data.json").read_text())
    (folder / "data.json").write_text(json.dumps({**data, "labels": ["\ud800" for _ in data["labels"]]}))
    assert "Data per worker" in write_report(folder).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "content", [b"[" * 100_000, b"a = " + b"[" * 50_000, bytes(range(256))], ids=["JSON", "TOML", "bytes"]
)
def test_no_file_breaks_the_report(name: str, content: bytes, folder: Path) -> None:
    (folder / name).write_bytes(content)
    assert "could not be read" in write_report(folder).read_text(encoding="utf-8")


FORMULA = '=HYPERLINK("http://127.0.0.1")'


@pytest.fixture(scope="module")
def compared(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a comparison."""
    folder = tmp_path_factory.mktemp("compared") / "grid"
    assert compare(finished / "experiment.toml", ["train.rounds=1,2"], out=folder, jobs=1).finished
    return folder


@pytest.fixture
def again(finished: Path, compared: Path, tmp_path: Path) -> Callable[[dict[str, Any]], Path]:
    """Return what resumes a copy of the comparison, one summary of which was changed."""
    folder = Path(shutil.copytree(compared, tmp_path / "grid"))
    summary = min(folder.glob("*/summary.json"))
    good = json.loads(summary.read_text())

    def resume(change: dict[str, Any]) -> Path:
        summary.write_text(json.dumps({**good, **change}))
        compare(finished / "experiment.toml", ["train.rounds=1,2"], out=folder, jobs=1, resume=True)
        return folder

    return resume


@pytest.mark.long
def test_no_cell_of_a_comparison_csv_is_a_formula(again: Callable[[dict[str, Any]], Path]) -> None:
    folder = again({"metrics": {FORMULA: 1.0, "accuracy": 0.5}, "stopped_by": FORMULA, "epsilon": FORMULA})
    rows = list(csv.reader((folder / "comparison.csv").read_text(encoding="utf-8").splitlines()))
    assert sum(cell == f"'{FORMULA}" for row in rows for cell in row) >= 2
    assert not any(cell.startswith(("=", "+", "@", "\t", "\r")) for row in rows for cell in row)


def test_names_of_metrics_are_escaped_in_the_page_of_a_comparison(again: Callable[[dict[str, Any]], Path]) -> None:
    folder = again({"metrics": {"<script>alert(1)</script>": 0.5, "<img src=x onerror=alert(1)>": 1.0}})
    page = (folder / "comparison.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert "<img" not in page


@pytest.mark.long
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_modified_summary_gives_a_comparison_or_a_one_line_error(
    again: Callable[[dict[str, Any]], Path], data: st.DataObject
) -> None:
    keys = st.sampled_from(
        ["metrics", "rounds", "seconds", "workers", "bytes_up", "lost_workers", "stopped_by", "other"]
    )
    values = st.sampled_from([*HUGE, 0, -1, {"accuracy": 10**400}, {"accuracy": "x"}, {"": None}])
    with suppress(ConfigurationError):
        again(data.draw(st.dictionaries(keys, values, max_size=2)))


def test_a_comparison_reads_no_summary_through_a_link(
    again: Callable[[dict[str, Any]], Path], finished: Path, outside: Path
) -> None:
    folder = again({})
    linked(min(folder.glob("*/summary.json")), outside)
    with pytest.raises(ConfigurationError, match="is a link out of its folder"):
        compare(finished / "experiment.toml", ["train.rounds=1,2"], out=folder, jobs=1, resume=True)


def test_a_resumed_comparison_reads_and_writes_no_folder_through_a_link(
    again: Callable[[dict[str, Any]], Path], finished: Path, tmp_path: Path
) -> None:
    folder = again({})
    cell = min(folder.glob("*/summary.json")).parent
    other = cell.rename(tmp_path / "a run of mine")
    (other / "summary.json").unlink()
    held = {path.name: path.read_bytes() for path in other.iterdir() if path.is_file()}
    cell.symlink_to(other)
    with pytest.raises(ConfigurationError, match="is a link out of its folder"):
        compare(finished / "experiment.toml", ["train.rounds=1,2"], out=folder, jobs=1, resume=True)
    assert {path.name: path.read_bytes() for path in other.iterdir() if path.is_file()} == held


def test_the_settings_of_a_comparison_are_not_read_through_a_link(
    again: Callable[[dict[str, Any]], Path], finished: Path, outside: Path
) -> None:
    folder = again({})
    linked(folder / "grid.json", outside)
    with pytest.raises(ConfigurationError, match="is a link out of its folder"):
        compare(finished / "experiment.toml", ["train.rounds=1,2"], out=folder, jobs=1, resume=True)


@pytest.mark.long
def test_the_log_of_a_cell_is_not_written_through_a_link(
    again: Callable[[dict[str, Any]], Path], finished: Path, outside: Path
) -> None:
    folder = again({})
    summary = min(folder.glob("*/summary.json"))
    summary.unlink()
    (folder / f"{summary.parent.name}.log").symlink_to(outside)
    assert compare(finished / "experiment.toml", ["train.rounds=1,2"], out=folder, jobs=1, resume=True).finished

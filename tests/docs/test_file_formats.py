"""The page of the file formats names the files and keys that runs and comparisons write, and no others."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

import chimera
from chimera.core.trace import TraceRow
from chimera.embeddings.files import FORMATS
from chimera.training.artifacts.tensor_file import read_tensors

PAGE = (Path(__file__).parents[2] / "docs/reference/file-formats.md").read_text(encoding="utf-8")
EXPERIMENT = {
    "data": "iris", "model": "sklearn-sgd-classifier", "workers": 2, "rounds": 4, "checkpoint_every": 1, "evaluate_every": 2,
    "engine": "simulated", "faults": ["slow worker 0 by 2 at step 1"],
}  # fmt: skip
WRITTEN_WHOLE = ("environment.json", "signature.json", "data.json", "summary.json")
WRITTEN_BY_ROWS = ("metrics.jsonl", "events.jsonl", "trace.jsonl")


def section(title: str) -> str:
    return PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]


def keys_of(file: str) -> tuple[set[str], set[str]]:
    """Return the keys that the page names for a file: those that are always there, and those marked with a question mark."""
    row = next(line for line in section("Folder of a run").splitlines() if line.startswith(f"| `{file}` | `"))
    named = re.findall(r"`([\w]+)`(\??)", row.split("|")[2].partition("; each worker")[0])
    return {key for key, mark in named if not mark}, {key for key, mark in named if mark}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    options = {key: value for key, value in EXPERIMENT.items() if key not in ("model", "data")}
    out = tmp_path_factory.mktemp("run") / "run"
    return chimera.train(EXPERIMENT["model"], EXPERIMENT["data"], out=out, progress=False, **options)


def test_the_files_of_a_run_are_those_of_the_page(run):
    table = section("Folder of a run").partition("\n### ")[0]
    named = {name.rstrip("/") for name in re.findall(r"^\| `([\w./]+)` \|", table, re.MULTILINE)}
    assert {path.name for path in run.run_dir.iterdir()} == named


@pytest.mark.parametrize("file", WRITTEN_WHOLE)
def test_the_keys_of_an_object_are_those_of_the_page(run, file):
    always, sometimes = keys_of(file)
    written = json.loads((run.run_dir / file).read_text()).keys()
    assert always <= written <= always | sometimes


@pytest.mark.parametrize("file", WRITTEN_BY_ROWS)
def test_the_keys_of_rows_are_those_of_the_page(run, file):
    always, sometimes = keys_of(file)
    rows = [json.loads(line) for line in (run.run_dir / file).read_text().splitlines()]
    metrics = {"loss", "accuracy"} if file == "metrics.jsonl" else set()
    assert rows
    for row in rows:
        assert always <= row.keys() <= always | sometimes | metrics


def test_the_page_names_each_field_of_a_trace_row():
    always, sometimes = keys_of("trace.jsonl")
    assert always | sometimes == {field.name for field in msgspec.structs.fields(TraceRow)}


def test_checkpoints_and_weights_are_as_the_page_says(run):
    checkpoints = sorted((run.run_dir / "checkpoints").iterdir())
    assert [path.name for path in checkpoints] == ["round-000000003.safetensors", "round-000000004.safetensors"]
    content = checkpoints[-1].read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    assert f'`"{header["__metadata__"]["format"]}"`' in section("Folder of a run")
    tree = msgspec.msgpack.decode(read_tensors(content)["tree"].tobytes())
    assert "__array__" in json.dumps(tree, default=str)
    weights = read_tensors((run.run_dir / "weights.safetensors").read_bytes())
    assert weights.keys() == {"coef_", "intercept_"}
    assert {tensor.dtype.name for tensor in weights.values()} == {"float32"}


def test_the_page_names_the_endings_of_files_of_word_vectors():
    exported = section("Folder of a run").partition("`chimera embed save`")[2].partition(";")[0]
    assert re.findall(r"`(\.\w+)`", exported) == [*FORMATS]


@pytest.mark.long
def test_the_files_of_a_comparison_are_those_of_the_page(tmp_path):
    tables = {name: {"name": EXPERIMENT[name]} for name in ("data", "model", "engine")}
    experiment = chimera.Experiment({**tables, "train": {"workers": 1, "rounds": 1}})
    comparison = chimera.compare(experiment, vary={"train.seed": [0]}, out=tmp_path / "cells")
    named = set(re.findall(r"^\| `([\w.]+)` \|", section("Folder of a comparison"), re.MULTILINE))
    written = {path.name for path in (tmp_path / "cells").iterdir()}
    assert written == named | {"seed=0"}
    described = section("Folder of a comparison")
    assert all(f"`{key}`" in described for key in json.loads((tmp_path / "cells/comparison.json").read_text()))
    assert json.loads((tmp_path / "cells/grid.json").read_text()).keys() == {"seed=0"}
    assert len(comparison.runs) == 1

"""What the live page reads of a run: pieces of growing files, settings, topology, copies from an object store."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import uuid
from importlib.resources import files
from pathlib import Path
from typing import Any

import fsspec
import pytest

from chimera.core.errors import ConfigurationError, RunError
from chimera.training.artifacts.growing_file import SEGMENT_BYTES, GrowingFile
from chimera.training.artifacts.object_store import ObjectStore
from chimera.training.progress import usage
from chimera.web.live import update
from chimera.web.live.description import describe, version
from chimera.web.live.pieces import FILES, PIECE_BYTES, Piece, read_piece
from chimera.web.live.server import Followed, LivePage
from chimera.web.live.store_copy import StoreCopy
from chimera.web.live.topology import topology
from chimera.web.live.update import UpdatedCopy, update_of
from web.live_kit import append, measured, write_run


def test_pieces_join_to_the_file(tmp_path: Path) -> None:
    rows = [{"number": number, "text": "x" * 100} for number in range(10_000)]
    append(tmp_path / "trace.jsonl", rows)
    content, at = b"", 0
    while (piece := read_piece(tmp_path, "trace", at=at)).lines:
        assert len(piece.lines) <= PIECE_BYTES
        content, at = content + piece.lines, piece.at
    assert content == (tmp_path / "trace.jsonl").read_bytes()
    assert at == piece.size


def test_an_incomplete_line_is_read_once_it_is_complete(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(b'{"round": 1}\n{"rou')
    first = read_piece(tmp_path, "metrics")
    assert first == Piece(b'{"round": 1}\n', 13, 18)
    with file.open("ab") as opened:
        opened.write(b'nd": 2}\n')
    assert read_piece(tmp_path, "metrics", at=first.at).lines == b'{"round": 2}\n'


def test_the_end_of_a_file_begins_with_a_whole_line(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_bytes(b'{"a": 1}\n{"a": 2}\n{"a": 3}\n')
    assert read_piece(tmp_path, "events", last=12) == Piece(b'{"a": 3}\n', 27, 27)
    assert read_piece(tmp_path, "events", last=1000).lines.count(b"\n") == 3


def test_a_shorter_file_restarts_its_reader(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"round": 1}\n')
    assert read_piece(tmp_path, "metrics", at=100) == Piece(b'{"round": 1}\n', 13, 13, restarted=True)
    (tmp_path / "metrics.jsonl").unlink()
    assert read_piece(tmp_path, "metrics", at=13) == Piece(
        b"", 13, 13
    )  # the folder of a run in a store ends with the run


def test_other_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no growing file"):
        read_piece(tmp_path, "../secret")


def test_a_description_has_settings_results_and_the_kind_of_time(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    before = version(run)
    about = describe(run)
    assert (about["strategy"], about["workers"], about["virtual"], about["summary"]) == (
        "parameter-server",
        3,
        True,
        {},
    )
    (run / "summary.json").write_text('{"rounds": 5, "metrics": {"loss": NaN}}')
    assert version(run) != before
    assert describe(run)["summary"] == {"rounds": 5, "metrics": {"loss": None}}
    json.dumps(describe(run), allow_nan=False)


@pytest.mark.parametrize(
    ("strategy", "edges"),
    [
        ("parameter-server", None),
        ("fed-avg", None),
        ("ring-all-reduce", [(0, 1), (0, 3), (1, 2), (2, 3)]),
        ("tree-all-reduce", [(0, 1), (0, 2), (1, 3)]),
        ("all-reduce", [(0, 1), (0, 3), (1, 2), (2, 3)]),
        ("pipeline-parallel", [(0, 1), (1, 2), (2, 3)]),
        ("d-psgd", [(0, 1), (0, 3), (1, 2), (2, 3)]),
        ("gossip-sgd", [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]),
        ("no-such-strategy", None),
    ],
)
def test_edges_are_those_of_the_strategy(strategy: str, edges: list[tuple[int, int]] | None) -> None:
    found, text, directed = topology({"strategy": {"name": strategy}, "train": {"workers": 4}})
    assert (sorted((min(pair), max(pair)) for pair in found) if found is not None else None) == edges
    assert directed == (strategy == "ring-all-reduce")
    assert text.endswith(".")


def test_edges_of_a_topology_that_is_set() -> None:
    star = {"strategy": {"name": "d-psgd", "topology": "star"}, "train": {"workers": 4}}
    assert topology(star).edges == [(0, 1), (0, 2), (0, 3)]
    code = {"strategy": {"name": "d-psgd", "topology": "os:system"}, "train": {"workers": 4}}
    assert topology(code).text == "The topology of the run is not known here; it is drawn as a ring."
    assert topology({"strategy": "d-psgd", "train": {"workers": 10_000}}) == (None, "", False)


def test_a_copy_of_a_store_grows_with_it(tmp_path: Path) -> None:
    memory, place = fsspec.filesystem("memory"), uuid.uuid4().hex
    url, run, there = f"memory://{place}/run", write_run(tmp_path / "run"), tmp_path / "copy"
    there.mkdir()
    try:
        store = ObjectStore(url)
        copy, sent = StoreCopy(store, there), GrowingFile(store, run / "metrics.jsonl")
        for content in ("", "x" * SEGMENT_BYTES, "y" * SEGMENT_BYTES, "z"):
            append(run / "metrics.jsonl", [measured(9, text=content)])
            sent.send(whole=False)
            copy.download()
            assert (there / "metrics.jsonl").read_bytes() == (run / "metrics.jsonl").read_bytes()
        sent.send(whole=True)
        copy.download()
        assert (there / "metrics.jsonl").read_bytes() == (run / "metrics.jsonl").read_bytes()
        assert [path.name for path in there.iterdir()] == ["metrics.jsonl"]
        assert copy.refresh() == ""
    finally:
        memory.rm(place, recursive=True)


def test_a_copy_of_updates_grows_with_the_run_and_starts_again_with_it(tmp_path: Path) -> None:
    run, there = tmp_path / "run", tmp_path / "copy"
    copy = UpdatedCopy(lambda at, known: update_of(run, at, known), there)
    copy.download()
    assert not there.exists()
    write_run(run)
    copy.download()
    names = {path.name for path in run.iterdir() if path.stat().st_size}
    assert names > {"metrics.jsonl", "trace.jsonl"}
    for name in names:
        assert (there / name).read_bytes() == (run / name).read_bytes(), name
    assert there.stat().st_mode & 0o077 == 0
    append(run / "metrics.jsonl", [measured(round_, text="x" * 9000) for round_ in range(10, 80)])  # several pieces
    with (run / "trace.jsonl").open("ab") as file:
        file.write(b'{"incomplete')
    copy.download()
    assert (there / "metrics.jsonl").read_bytes() == (run / "metrics.jsonl").read_bytes()
    assert b"incomplete" not in (there / "trace.jsonl").read_bytes()
    append(run.with_name("shorter"), [measured(1)])
    run.with_name("shorter").replace(run / "metrics.jsonl")
    copy.download()
    assert (there / "metrics.jsonl").read_bytes() == (run / "metrics.jsonl").read_bytes()


def test_a_copy_is_bounded_and_has_no_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"lines": "", "at": 0, "size": 0, "restarted": False}
    given: dict[str, Any] = {
        "rows": dict.fromkeys(FILES, rows), "version": "1", "small": {"../x": "", "summary.json": "{}"}
    }  # fmt: skip
    there = tmp_path / "copy"
    copy = UpdatedCopy(lambda *_: given, there)
    assert copy.refresh() == ""
    assert [path.name for path in there.iterdir()] == ["summary.json"]
    for wrong in ({}, {**given, "rows": []}, {**given, "small": {"summary.json": 3}}):
        with pytest.raises(RunError, match="no update of a run"):
            UpdatedCopy(lambda *_, wrong=wrong: wrong, there).download()
    given["rows"]["trace"] = {**rows, "lines": "x" * (3 * PIECE_BYTES + 1)}
    with pytest.raises(RunError, match="too many lines"):
        copy.download()
    monkeypatch.setattr(update, "MAX_COPY_BYTES", 7)
    given["rows"]["trace"] = {**rows, "lines": "four\n", "at": 5}
    copy.download()
    given["rows"]["trace"] = {**rows, "lines": "four\n", "at": 10}
    copy.download()
    assert (there / "trace.jsonl").read_text() == "four\n"


def test_a_page_shows_at_most_six_runs_and_names_them_apart(tmp_path: Path) -> None:
    runs = [Followed("run", tmp_path / str(number)) for number in range(7)]
    with pytest.raises(ConfigurationError, match="1 to 6 runs, not 7"):
        LivePage(runs)
    page = LivePage(runs[:2])
    page.close()
    taken = LivePage(runs[:1])
    try:
        with pytest.raises(
            ConfigurationError, match=r"cannot listen on port \d+ of 127\.0\.0\.1: Address already in use"
        ):
            LivePage(runs[:1], int(taken.address.rstrip("/").rpartition(":")[2]))
    finally:
        taken.close()


def test_the_page_needs_no_extra() -> None:
    absent = ("fastapi", "starlette", "uvicorn", "orjson", "torch", "ray")
    code = f"import sys\nfor name in {absent!r}: sys.modules[name] = None\nimport chimera.web.live.server, chimera.cli.watched"
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )


def test_the_page_leaves_out_the_calls_that_the_report_does_not_count() -> None:
    """A worker's `weights` may be of a round or of an evaluation: the page, which does not know, counts them."""
    script = files("chimera.web.live").joinpath("follow.js").read_text(encoding="utf-8")
    listed = script.partition("const BETWEEN = new Set([")[2].partition("]")[0]
    assert set(re.findall(r'"(\w+)"', listed)) == usage._UNCOUNTED - {"weights"}

"""Results in files and on the standard output."""

from __future__ import annotations

import io
import json
import socket
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

from chimera.core.errors import ConfigurationError, MissingExtraError
from chimera.inference import results
from chimera.inference.client import Client

_ROWS = [
    results.row(0, "cat.png", {"result": [{"label": "cat", "score": 0.5}]}),
    results.row(1, "owl.png", {"error": "there is no image 'owl.png'"}),
    results.row(2, "dog.png", {"result": [{"label": "dog", "score": 0.25}]}),
]


def test_lines_have_the_index_the_query_and_a_result_or_an_error() -> None:
    stream = io.BytesIO()
    assert results.write_lines(iter(_ROWS), stream) == 3
    lines = stream.getvalue().splitlines()
    assert json.loads(lines[0]) == {
        "index": 0,
        "query": "cat.png",
        "result": [{"label": "cat", "score": 0.5}],
    }
    assert json.loads(lines[1]) == {"index": 1, "query": "owl.png", "error": "there is no image 'owl.png'"}


def test_rows_of_arrays_become_lists_and_what_json_lacks_null() -> None:
    (line,) = results.lines([results.row(0, np.array([1.5, np.nan], np.float32), {"result": 1})])
    assert json.loads(line) == {"index": 0, "query": [1.5, None], "result": 1}


def test_a_parquet_file_has_typed_columns(tmp_path: Path) -> None:
    assert results.save(iter(_ROWS), tmp_path / "out.parquet") == 3
    table = pyarrow.parquet.read_table(tmp_path / "out.parquet")
    assert table.column_names == ["index", "query", "result", "error"]
    assert table.to_pylist() == [{"result": None, "error": None, **row} for row in _ROWS]


@pytest.mark.parametrize(
    "values",
    [
        [1, "one", [1]],
        [{"a": 1}, {"b": 2}],
        [{}, {}],
        [{"a": [{}]}],
        [2**70, 1],
        [[1, "a"]],
    ],
)
def test_results_of_several_types_are_json_texts_in_parquet(values: list[Any], tmp_path: Path) -> None:
    results.save((results.row(i, i, {"result": value}) for i, value in enumerate(values)), tmp_path / "out.parquet")
    column = pyarrow.parquet.read_table(tmp_path / "out.parquet")["result"].to_pylist()
    assert [json.loads(text) for text in column] == values


def test_queries_that_are_arrays_fit_into_parquet(tmp_path: Path) -> None:
    results.save((results.row(i, np.full((2, 2), i), {"result": i}) for i in range(3)), tmp_path / "out.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "out.parquet")
    assert table["query"].to_pylist()[2] == [[2, 2], [2, 2]]
    assert table["result"].to_pylist() == [0, 1, 2]


def test_no_results_are_a_file_too(tmp_path: Path) -> None:
    for ending in results.ENDINGS:
        assert results.save([], tmp_path / f"none{ending}") == 0
    assert pyarrow.parquet.read_table(tmp_path / "none.parquet").num_rows == 0
    assert (tmp_path / "none.jsonl").read_bytes() == b""


@pytest.mark.parametrize("ending", results.ENDINGS)
def test_a_file_is_written_whole_or_not_at_all(ending: str, tmp_path: Path) -> None:
    def broken() -> Any:
        yield _ROWS[0]
        raise ValueError("the connection is gone")

    target = tmp_path / f"out{ending}"
    target.write_text("before")
    with pytest.raises(ValueError, match="the connection is gone"):
        results.save(broken(), target)
    assert target.read_text() == "before"
    assert list(tmp_path.iterdir()) == [target]


def test_a_path_that_cannot_be_used_is_refused_before_results_are_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigurationError, match=r"the ending must be one of \.jsonl"):
        results.check_path(tmp_path / "out.xls")
    with pytest.raises(ConfigurationError, match="there is no folder"):
        results.check_path(tmp_path / "absent" / "out.jsonl")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"a Parquet file needs the package 'pyarrow'"):
        results.check_path(tmp_path / "out.parquet")


def test_results_continue_after_a_coordinator_died_within_them() -> None:
    lines = [b'{"index":0,"query":0,"result":0}\n', b'{"index":1,"query":1,"result":2}\n']
    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = [b"%x\r\n%s\r\n" % (len(line), line) for line in lines]
    answers = [head, head + chunks[0], head + chunks[1] + b"0\r\n\r\n"]
    asked = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for answer in answers:
                connection, _ = server.accept()
                with connection:
                    asked.append(connection.recv(1 << 16).split()[1])
                    connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        client = Client(lambda: f"http://127.0.0.1:{server.getsockname()[1]}", "token")
        assert [row["result"] for row in client.results("7")] == [0, 2]
        thread.join()
    assert asked == [b"/v1/infer/jobs/7/results?first=%d" % first for first in (0, 0, 1)]


def test_an_error_with_a_deeply_nested_body_is_told_by_its_status() -> None:
    error = Client(lambda: None, "token")._error(500, b"[" * 100_000)
    assert "answered 500" in str(error)

"""Inputs of jobs as streams of queries."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chimera.core.errors import ConfigurationError, DataError
from chimera.inference.inputs import queries


def test_a_folder_stands_for_the_images_in_it_by_name(tmp_path: Path) -> None:
    for name in ("b.png", "a.JPG", "deep/c.webp", "notes.txt", ".hidden/d.png", "deep/.thumb.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    found = [str(tmp_path / name) for name in ("a.JPG", "b.png", "deep/c.webp")]
    assert list(queries(tmp_path)) == found
    assert list(queries(f"{tmp_path}/*.png")) == found[1:2]
    assert list(queries(f"{tmp_path}/**/*.webp")) == found[2:]
    assert list(queries(found[0])) == found[:1]


def test_relative_names_become_absolute_so_that_workers_find_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a[1].png").write_bytes(b"x")
    monkeypatch.chdir(tmp_path)
    assert list(queries("a[1].png")) == [str(tmp_path / "a[1].png")]


def test_lines_of_texts_keep_their_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("\ufeffone\r\n\n zwölf \nlast".encode())
    assert list(queries(tmp_path / "a.txt")) == ["one", "", " zwölf ", "last"]


def test_lines_of_json_are_values(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n\n[1, 2.5]\n"x"\nnull\n')
    assert list(queries(tmp_path / "a.jsonl")) == [{"text": "a"}, [1, 2.5], "x", None]


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        ("1,2.5\n-3,4e1\n", [[1, 2.5], [-3, 40.0]]),
        ("a,b\n1,x\n,nan\n", [{"a": 1, "b": "x"}, {"a": None, "b": "nan"}]),
        ("a;b\n1,5;x\n", [{"a": 1.5, "b": "x"}]),
        ('a,b\n1,"two\nlines, and more"\n\n2,1_000\n', [{"a": 1, "b": "two\nlines, and more"}, {"a": 2, "b": "1_000"}]),
        ("1\t2\n3\t4\n", [[1, 2], [3, 4]]),
        ("text\ngood day\n", [{"text": "good day"}]),
        ("a , b\n1,2\n", [{"a": 1, "b": 2}]),
        ("a,,\n1,,\n", [{"a": 1, "": None}]),
        ("7,good day\n8,bad day\n", [[7, "good day"], [8, "bad day"]]),
        ("1,NA,x\n2,3,x\n", [[1, "NA", "x"], [2, 3, "x"]]),
    ],
)
def test_rows_of_tables_are_dictionaries_where_columns_have_names(
    content: str, rows: list[Any], tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text(content)
    assert list(queries(tmp_path / "a.csv")) == rows
    json.dumps(rows, allow_nan=False)


@settings(max_examples=40)
@given(
    st.lists(
        st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\x00")), min_size=2, max_size=2), min_size=1
    )
)
def test_whatever_a_csv_writer_writes_has_as_many_queries_as_rows(rows: list[list[str]]) -> None:
    import csv

    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows([["first", "second"], *rows])
    fsspec.filesystem("memory").pipe_file("/made.csv", text.getvalue().encode())
    assert len(list(queries("memory://made.csv"))) == len(rows)


@pytest.mark.parametrize("dtype", ["float32", "int16", "bool", "<U3", ">f8"])
def test_rows_of_arrays_are_read_piece_by_piece(dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chimera.inference.input_files._PIECE_BYTES", 64)
    array = np.arange(60).reshape(20, 3).astype(dtype)
    np.save(tmp_path / "a.npy", array)
    found = list(queries(tmp_path / "a.npy"))
    np.testing.assert_array_equal(np.stack(found), array)
    np.save(tmp_path / "b.npy", array[:, 0])
    assert list(queries(tmp_path / "b.npy")) == array[:, 0].tolist()


def test_any_file_system_and_compression(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/inputs/b.txt", b"three\n")
    memory.pipe_file("/inputs/a.txt", b"one\ntwo\n")
    memory.pipe_file("/inputs/c.png", b"x")
    array = io.BytesIO()
    np.save(array, np.eye(2))
    memory.pipe_file("/inputs/d.npy", array.getvalue())
    assert list(queries("memory://inputs/*.txt")) == ["one", "two", "three"]
    assert list(queries("memory://inputs/c.png")) == ["memory:///inputs/c.png"]
    assert list(queries("memory://inputs")) == ["memory:///inputs/c.png"]
    np.testing.assert_array_equal(np.stack(list(queries("memory://inputs/d.npy"))), np.eye(2))
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"1\n2\n"))
    assert list(queries(f"file://{tmp_path}/a.jsonl.gz")) == [1, 2]


def test_lists_arrays_frames_and_streams_from_python() -> None:
    import pandas
    import torch

    assert list(queries(["a", 1, {"b": (np.float32(2), None)}, Path("/x.png")])) == [
        "a",
        1,
        {"b": [2.0, None]},
        "/x.png",
    ]
    assert list(queries(np.arange(3))) == [0, 1, 2]
    np.testing.assert_array_equal(np.stack(list(queries(torch.eye(2)))), np.eye(2))
    assert list(queries(pandas.DataFrame({"a": [1, 2], "b": ["x", "y"]}))) == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    assert list(queries(str(i) for i in range(3))) == ["0", "1", "2"]


def test_a_large_file_is_read_as_it_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("1\n2\nno json\n")
    found = queries(tmp_path / "a.jsonl")
    assert [next(found), next(found), found.count, found.bytes] == [1, 2, 2, 16]
    with pytest.raises(DataError, match=r"a.jsonl, line 3: not JSON"):
        next(found)


def _files(folder: Path) -> None:
    (folder / "empty.txt").write_text("")
    (folder / "empty").mkdir()
    (folder / "data.xyz").write_text("x")
    (folder / "bad.jsonl").write_text("{\n")
    (folder / "nan.jsonl").write_text("NaN\n")
    (folder / "latin.txt").write_bytes(b"caf\xe9\n")
    (folder / "ragged.csv").write_text("a,b\n1,2,3\n")
    (folder / "repeated.csv").write_text("a,b , b\n1,2,3\n")
    (folder / "years.csv").write_text("city,2019,2020\n1,2.5,3.5\n2,4.5,5.5\n")
    (folder / "bad.npy").write_text("no array")
    np.save(folder / "objects.npy", np.array([{}], object), allow_pickle=True)
    np.save(folder / "scalar.npy", np.array(1))
    np.save(folder / "columns.npy", np.asfortranarray(np.eye(3)))
    np.save(folder / "whole.npy", np.eye(3))
    (folder / "cut.npy").write_bytes((folder / "whole.npy").read_bytes()[:-1])
    (folder / "bad.txt.gz").write_text("no gzip")
    (folder / "long.txt").write_bytes(b"x" * ((16 << 20) + 1))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent.png", "there is no file or folder '.*absent.png'"),
        ("*.webp", "no file matches"),
        ("empty", "contains no images; for other files use a pattern"),
        ("empty.txt", "contains no queries"),
        ("data.xyz", "is unknown; known endings: .txt, .jsonl"),
        ("bad.jsonl", "line 1: not JSON"),
        ("nan.jsonl", "line 1: not JSON"),
        ("latin.txt", "line 1: not UTF-8 text"),
        ("ragged.csv", "line 2: 3 cells, the first line has 2"),
        ("repeated.csv", "has several columns 'b'"),
        (
            "years.csv",
            "the first line may be names of columns or values, since it has numbers, and the text 'city' above",
        ),
        ("bad.npy", "cannot be read as .npy"),
        ("objects.npy", "only arrays of numbers"),
        ("scalar.npy", "has no rows"),
        ("columns.npy", "is stored in column-major order"),
        ("cut.npy", "is truncated"),
        ("bad.txt.gz", "cannot be read"),
        ("long.txt", "line 1: the line is longer than 16 MiB"),
    ],
)
def test_what_cannot_be_read_is_one_line(name: str, message: str, tmp_path: Path) -> None:
    _files(tmp_path)
    with pytest.raises(DataError, match=message) as caught:
        list(queries(tmp_path / name))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nosuch://bucket/a.txt", "nosuch"),
        ([], "the list contains no queries"),
        ([1, {2, 3}], "a set cannot be a query"),
        ([object()], "a object cannot be a query"),
        (np.array(3), "has no rows"),
        (np.array([{}], object), "a dict|cannot be a query"),
        ({"a": 1}, "inputs cannot be a dict"),
        (b"bytes", "inputs cannot be a bytes"),
        (7, "inputs cannot be a int"),
    ],
)
def test_what_is_no_input_is_one_line(source: Any, message: str) -> None:
    if isinstance(source, np.ndarray) and source.dtype == object:
        source = [source]
    with pytest.raises(ConfigurationError, match=message) as caught:
        list(queries(source))
    assert "\n" not in str(caught.value)


def test_how_much_is_read_is_limited(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abc\n" * 10)
    assert len(list(queries(tmp_path / "a.txt", max_queries=10, max_bytes=30))) == 10
    with pytest.raises(DataError, match="more than 9 queries"):
        list(queries(tmp_path / "a.txt", max_queries=9))
    with pytest.raises(DataError, match="queries of more than 29 bytes"):
        list(queries(tmp_path / "a.txt", max_bytes=29))

"""Tables of requests, and training data of workers, valid and invalid."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera.core.errors import DataError
from chimera.nodes.table import Table, match_columns, numeric_array, read_training_data
from nodes.served import write_data

names = st.lists(
    st.text("abcXYZ 1", min_size=1).filter(str.strip), unique_by=lambda name: name.strip().lower(), min_size=1
)


def written(x: str | None, y: str | None = "y\n1\n2\n") -> Path:
    folder = Path("tree1")
    folder.mkdir()
    for name, text in (("X_train.csv", x), ("y_train.csv", y)):
        if text is not None:
            (folder / name).write_text(text)
    return folder


@given(names, st.randoms(use_true_random=False), st.sampled_from([str.upper, str.lower, " {}\t".format]))
def test_columns_are_matched_regardless_of_order_case_and_blanks(wanted: list[str], random: Any, change: Any) -> None:
    shuffled = random.sample(wanted, len(wanted))
    order = match_columns(wanted, [change(name) for name in shuffled])
    assert [shuffled[place] for place in order] == wanted


def test_all_mismatched_columns_are_named() -> None:
    with pytest.raises(DataError, match=r"missing: 'Age', 'b'; unknown: 'c'; repeated: 'size'"):
        match_columns(["Age", "b", "size"], ["c", "size", "SIZE "])


def test_rows_are_ordered_by_the_wanted_columns() -> None:
    table = Table.of(["b", "A"], [[1, 2], [3, 4.5]])
    assert table.ordered([" a", "B"]).tolist() == [[2, 1], [4.5, 3]]
    assert table.ordered(["b", "a"]) is table.rows


@pytest.mark.parametrize(
    ("columns", "rows", "message"),
    [
        ("ab", [[1, 2]], "must be a list of names"),
        ([1, 2], [[1, 2]], "must be a list of names"),
        (["a", "b"], "text", "must be a list of numbers"),
        (["a", "b"], [1, 2], r"2 numbers each.*\(2,\)"),
        (["a", "b"], [[1, 2, 3]], r"2 numbers each.*\(1, 3\)"),
        (["a", "b"], [[1, 2], [3]], "the same length"),
        (["a", "b"], [[1, "2"]], "contains '2'"),
        (["a", "b"], [[1, None]], "contains null"),
        (["a", "b"], [[True, False]], "contains True"),
        (["a", "b"], [[True, 2.0]], "contains True"),
        (["a", "b"], [[1, 2**70]], "beyond 64 bits"),
        (["a", "b"], [[1, {}]], "contains {}"),
        (["a", "b"], np.array([["1", "2"]]), "type <U1"),
        (["a", "b"], np.array([[1, np.nan]]), r"contains nan at \[0, 1\]"),
        (["a", "b"], [[]], r"\(1, 0\)"),
        (["a", "b"], [[[1, 2]]], r"\(1, 1, 2\)"),
    ],
)
def test_an_invalid_table_is_refused(columns: Any, rows: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Table.of(columns, rows)


def test_a_text_among_numbers_is_refused_before_memory_is_allocated() -> None:
    rows = [["x" * 100_000, 1.0], *([1.0, 2.0] for _ in range(500))]
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="contains 'xxx"):
            Table.of(["a", "b"], rows)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_message_lists_few_names_and_the_beginning_of_a_long_one() -> None:
    with pytest.raises(DataError) as caught:
        match_columns(["a"], ["x" * 100_000, *(f"c{i}" for i in range(1000))])
    assert len(str(caught.value)) < 300
    assert str(caught.value).endswith("'c8' and 991 more")


def test_a_table_may_have_no_rows() -> None:
    assert Table.of(["a", "b"], []).rows.shape == (0, 2)
    assert Table.of(["a", "b"], np.zeros((0, 2), np.float32)).ordered(["b", "a"]).shape == (0, 2)


def test_numbers_beyond_the_range_of_the_type_are_refused() -> None:
    assert numeric_array([1e300], "x").dtype == np.float64
    with pytest.raises(DataError, match="type float32"):
        numeric_array([1e300], "x", np.float32)


def test_training_data_are_read_exactly(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows, y = rng.standard_normal((7, 3)), rng.integers(3, size=7)
    read = read_training_data(write_data(tmp_path / "a", rows, y))
    np.testing.assert_allclose(read[0], rows, rtol=1e-15)
    assert read[0].flags.c_contiguous
    assert (read[1], read[2].tolist(), read[3]) == (("x0", "x1", "x2"), y.tolist(), ("y",))
    several = read_training_data(write_data(tmp_path / "b", rows, rows[:, :2]), task="regression")
    assert several[2].shape == (7, 2)


def test_labels_keep_their_type() -> None:
    folder = written("a\n1\n2\n", "y\nsick\nwell\n")
    assert read_training_data(folder)[2].tolist() == ["sick", "well"]
    (folder / "y_train.csv").write_text("y\nTrue\nFalse\n")
    assert read_training_data(folder)[2].tolist() == [True, False]


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (None, "y\n1\n", r"there is no tree1/X_train.csv: a worker needs its data"),
        (None, None, r"no tree1/X_train.csv and no tree1/y_train.csv"),
        ("", "y\n1\n", "tree1/X_train.csv is empty"),
        ("a,b\n", "y\n1\n", "X_train.csv is empty: it has a header and no rows"),
        ("a,b\n1,2\n3,4,5\n", "y\n1\n2\n", "X_train.csv is not a table.*line 3"),
        ("a,b\n1,2,3\n3,4,5\n", "y\n1\n2\n", "the first line of tree1/X_train.csv has 2 cells and the others more"),
        ("a,b\n1,2\n3\n", "y\n1\n2\n", "X_train.csv, row 2: the column 'b' has no value"),
        ("a,b\n1,2\n3,\n", "y\n1\n2\n", "X_train.csv, row 2: the column 'b' has no value"),
        ("a,b\n1,nan\n3,4\n", "y\n1\n2\n", "X_train.csv, row 1: the column 'b' has no value"),
        ("a,b\n1,2\n3,old\n", "y\n1\n2\n", "X_train.csv, row 2, column 'b': 'old' is not a number"),
        ("a,b\n1,2\ninf,3\n", "y\n1\n2\n", "X_train.csv, row 2, column 'a': 'inf' is not finite"),
        ("a,b\n1,2\n" + "9" * 400 + ",3\n", "y\n1\n2\n", "X_train.csv, row 2, column 'a': '9+' is not finite"),
        ("a,b\n1,2\n3,4\n", "y\n1\n", "X_train.csv has 2 rows but tree1/y_train.csv has 1"),
        ("a,b\n1,2\n3,4\n", "y\n1\nx\n", "y_train.csv, row 2, column 'y': 'x' is not a number"),
        ("a,b\n1,2\n3,4\n", "y,z\n1,2\n1,\n", "y_train.csv, row 2: the column 'z' has no value"),
        (",a\n0,2\n1,4\n", "y\n1\n2\n", "X_train.csv: column 1 has no name"),
        ("a,A \n0,2\n1,4\n", "y\n1\n2\n", "X_train.csv: the column name 'a' is repeated"),
        ("1.5,2.5\n0,2\n1,4\n", "y\n1\n2\n", "X_train.csv must start with a header of names"),
    ],
)
def test_errors_in_files_name_the_file_and_the_row(x: str | None, y: str | None, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        read_training_data(written(x, y), task="regression")
    assert "\n" not in str(caught.value)


def test_a_binary_file_is_refused() -> None:
    folder = written("a\n1\n2\n")
    (folder / "X_train.csv").write_bytes(b"a\n\xff\xfe\n")
    with pytest.raises(DataError, match=r"X_train.csv is not a text file"):
        read_training_data(folder)


def test_numbered_columns_are_accepted() -> None:
    assert read_training_data(written("0,1\n5,6\n7,8\n", "0\n1\n2\n"))[1] == ("0", "1")

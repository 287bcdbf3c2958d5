"""Tables of requests, and the training data of workers with everything that can be wrong in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera.core.errors import DataError
from chimera.nodes.table import Table, match_columns, numbers, read_training_data
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
def test_columns_are_matched_in_any_order_trimmed_and_in_lower_case(wanted: list[str], random: Any, spell: Any) -> None:
    shuffled = random.sample(wanted, len(wanted))
    order = match_columns(wanted, [spell(name) for name in shuffled])
    assert [shuffled[place] for place in order] == wanted


def test_columns_that_do_not_fit_are_all_named() -> None:
    with pytest.raises(DataError, match=r"missing: 'Age', 'b'; not known: 'c'; given twice: 'size'"):
        match_columns(["Age", "b", "size"], ["c", "size", "SIZE "])


def test_rows_come_in_the_order_that_is_wanted() -> None:
    table = Table.of(["b", "A"], [[1, 2], [3, 4.5]])
    assert table.ordered([" a", "B"]).tolist() == [[2, 1], [4.5, 3]]
    assert table.ordered(["b", "a"]) is table.rows


@pytest.mark.parametrize(
    ("columns", "rows", "said"),
    [
        ("ab", [[1, 2]], "must be a list of names"),
        ([1, 2], [[1, 2]], "must be a list of names"),
        (["a", "b"], "text", "must be a list of numbers"),
        (["a", "b"], [1, 2], r"2 numbers each.*\(2,\)"),
        (["a", "b"], [[1, 2, 3]], r"2 numbers each.*\(1, 3\)"),
        (["a", "b"], [[1, 2], [3]], "equally long"),
        (["a", "b"], [[1, "2"]], "holds '2'"),
        (["a", "b"], [[1, None]], "holds null"),
        (["a", "b"], [[True, False]], "holds True"),
        (["a", "b"], [[1, 2**70]], "beyond 64 bits"),
        (["a", "b"], [[1, {}]], "holds {}"),
        (["a", "b"], np.array([["1", "2"]]), "type <U1"),
        (["a", "b"], np.array([[1, np.nan]]), r"holds nan at \[0, 1\]"),
        (["a", "b"], [[]], r"\(1, 0\)"),
        (["a", "b"], [[[1, 2]]], r"\(1, 1, 2\)"),
    ],
)
def test_a_request_that_is_no_table_is_refused(columns: Any, rows: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        Table.of(columns, rows)


def test_a_table_may_have_no_rows() -> None:
    assert Table.of(["a", "b"], []).rows.shape == (0, 2)
    assert Table.of(["a", "b"], np.zeros((0, 2), np.float32)).ordered(["b", "a"]).shape == (0, 2)


def test_numbers_beyond_the_type_are_not_finite() -> None:
    assert numbers([1e300], "x").dtype == np.float64
    with pytest.raises(DataError, match="type float32"):
        numbers([1e300], "x", np.float32)


def test_training_data_are_read_as_they_were_written(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows, y = rng.standard_normal((7, 3)), rng.integers(3, size=7)
    read = read_training_data(write_data(tmp_path / "a", rows, y))
    np.testing.assert_allclose(read[0], rows, rtol=1e-15)
    assert read[0].flags.c_contiguous
    assert (read[1], read[2].tolist(), read[3]) == (("x0", "x1", "x2"), y.tolist(), ("y",))
    several = read_training_data(write_data(tmp_path / "b", rows, rows[:, :2]), task="regression")
    assert several[2].shape == (7, 2)


def test_labels_keep_their_kind() -> None:
    folder = written("a\n1\n2\n", "y\nsick\nwell\n")
    assert read_training_data(folder)[2].tolist() == ["sick", "well"]
    (folder / "y_train.csv").write_text("y\nTrue\nFalse\n")
    assert read_training_data(folder)[2].tolist() == [True, False]


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        (None, "y\n1\n", r"there is no tree1/X_train.csv: a worker's data"),
        (None, None, r"no tree1/X_train.csv and no tree1/y_train.csv"),
        ("", "y\n1\n", "tree1/X_train.csv is empty"),
        ("a,b\n", "y\n1\n", "X_train.csv has no row below"),
        ("a,b\n1,2\n3,4,5\n", "y\n1\n2\n", "X_train.csv is not a table.*line 3"),
        ("a,b\n1,2,3\n3,4,5\n", "y\n1\n2\n", "X_train.csv, row 1: it has more cells"),
        ("a,b\n1,2\n3\n", "y\n1\n2\n", "X_train.csv, row 2: there is no value in the column 'b'"),
        ("a,b\n1,2\n3,\n", "y\n1\n2\n", "X_train.csv, row 2: there is no value in the column 'b'"),
        ("a,b\n1,nan\n3,4\n", "y\n1\n2\n", "X_train.csv, row 1: there is no value in the column 'b'"),
        ("a,b\n1,2\n3,old\n", "y\n1\n2\n", "X_train.csv, row 2, column 'b': 'old' is not a number"),
        ("a,b\n1,2\ninf,3\n", "y\n1\n2\n", "X_train.csv, row 2, column 'a': 'inf' is not finite"),
        ("a,b\n1,2\n3,4\n", "y\n1\n", "X_train.csv has 2 rows and tree1/y_train.csv has 1"),
        ("a,b\n1,2\n3,4\n", "y\n1\nx\n", "y_train.csv, row 2, column 'y': 'x' is not a number"),
        ("a,b\n1,2\n3,4\n", "y,z\n1,2\n1,\n", "y_train.csv, row 2: there is no value in the column 'z'"),
        (",a\n0,2\n1,4\n", "y\n1\n2\n", "X_train.csv: column 1 has no name"),
        ("a,A \n0,2\n1,4\n", "y\n1\n2\n", "X_train.csv: the column 'a' is there twice"),
        ("1.5,2.5\n0,2\n1,4\n", "y\n1\n2\n", "X_train.csv must begin with a line of names"),
    ],
)
def test_bad_files_are_one_line_with_the_file_and_the_row(x: str | None, y: str | None, said: str) -> None:
    with pytest.raises(DataError, match=said) as caught:
        read_training_data(written(x, y), task="regression")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_text_is_one_line() -> None:
    folder = written("a\n1\n2\n")
    (folder / "X_train.csv").write_bytes(b"a\n\xff\xfe\n")
    with pytest.raises(DataError, match=r"X_train.csv is not a text file"):
        read_training_data(folder)


def test_columns_that_are_only_numbered_have_names() -> None:
    assert read_training_data(written("0,1\n5,6\n7,8\n", "0\n1\n2\n"))[1] == ("0", "1")

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from chimera.core.errors import ConfigurationError, DataError
from chimera.data.dataset import Dataset
from chimera.data.files import csv
from chimera.data.readers import csv_file
from chimera.data.split import DATASETS, Split

TABLES = {
    "header": "a,b,y\n1,2,0\n3,4,1\n",
    "no header": "1,2,0\n3,4,1\n",
    "semicolons": "a;b;y\n1;2;0\n3;4;1\n",
    "decimal commas": "a;b;y\n1,0;2,0;0\n3,0;4,0;1\n",
    "tabs": "a\tb\ty\n1\t2\t0\n3\t4\t1\n",
    "pipes": "a|b|y\n1|2|0\n3|4|1\n",
    "spaces": "1 2 0\n3 4 1\n",
    "spaces after commas": "a, b, y\n1, 2, 0\n3, 4, 1\n",
    "quotes": '"a","b, and more","y"\n"1","2","0"\n"3","4","1"\n',
    "blank lines, carriage returns, a byte order mark": "\ufeffa,b,y\r\n\r\n1,2,0\r\n3,4,1\r\n",
}


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("ending", ["table.csv", "table.csv.gz", "table.data"])
def test_a_table_is_read_in_every_format(tmp_path, kind, ending):
    path = tmp_path / ending
    content = TABLES[kind].encode()
    path.write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
    data = Dataset.of(path)
    assert data.inputs.tolist() == [[1, 2], [3, 4]]
    assert data.targets.tolist() == [0, 1]
    assert data.classes == ("0", "1")
    assert data.name == ending


def write(path, text):
    path.write_text(text)
    return str(path)


def test_the_target_is_a_column_by_name_or_index_and_the_last_by_default(tmp_path):
    path = write(tmp_path / "t.csv", "a,b,c\n1,2.5,x\n3,4.5,y\n")
    assert Dataset.of(path).classes == ("x", "y")
    assert Dataset.of(path, target="a").classes == ("1", "3")
    for target in ("b", 1, -2, "1"):
        data = Dataset.of(path, target=target)
        assert data.targets.tolist() == [2.5, 4.5]
        assert data.features == ("a", "c=x", "c=y")
    several = Dataset.of(path, target=["a", "b"])
    assert several.targets.tolist() == [[1, 2.5], [3, 4.5]]
    assert (several.outputs, several.features) == (2, ("c=x", "c=y"))


def test_spaces_around_a_name_are_no_part_of_it(tmp_path):
    path = write(tmp_path / "t.csv", "a , b , y \n1 , 2 , 0\n3 , 4 , 1\n")
    data = Dataset.of(path, target="a")
    assert (data.classes, data.features) == (("1", "3"), ("b", "y"))


def test_an_integer_beyond_the_columns_is_the_name_of_a_column(tmp_path):
    path = write(tmp_path / "t.csv", "1,2019,2020\n1.5,2.5,7\n3.5,4.5,8\n")
    data = Dataset.of(path, header=True, target=2020)  # as --set data.target=2020 gives it
    assert (data.classes, data.features) == (("7", "8"), ("1", "2019"))
    assert Dataset.of(path, header=True, target=1).targets.tolist() == [2.5, 4.5]
    with pytest.raises(DataError, match="no column 2021; its columns: 1, 2019, 2020"):
        Dataset.of(path, header=True, target=2021)
    with pytest.raises(DataError, match="no column '--5'; its columns: 1, 2019, 2020"):
        Dataset.of(path, header=True, target="--5")


def test_the_header_option_overrides_detection(tmp_path):
    path = write(tmp_path / "t.csv", "e,p\nx,e\nx,p\n")
    assert len(Dataset.of(path)) == 2
    assert len(Dataset.of(path, header=False)) == 3


INVALID_TABLES = {
    "empty": ("", "is empty"),
    "names only": ("a,b\n", "empty"),
    "index": (",a,y\n0,5,1\n1,6,0\n2,7,1\n", r"numbers the rows.*drop=\['Unnamed: 0'\]"),
    "one column": ("a\n1\n2\n", "1 column"),
    "unnamed first column": (
        "a,y\nr1,1,0\nr2,2,1\n",
        "first line of .* has 2 cells and the others more: name each column",
    ),
    "unnamed last column": ("a,b,y\n1,2,0,5\n2,2,1,6\n3,2,1,7\n", "has 3 cells and the others more: name each column"),
    "separator at the end": ("a,y\n1,0,\n2,1,\n", "has 2 cells and the others more"),
    "empty column": ("a,y,\n1,0,\n2,1,\n", r"column 'Unnamed: 2' is empty: leave it out \(drop\)"),
    "long line": ("a,b\n1,2\n1,2,3\n", "equal numbers of cells in all lines"),
    "missing": ("a,b,y\n1,,0\n1,2,1\n,,1\n", "column 'a' lacks 1 of 3 values, the first in row 2"),
    "missing target": ("a,y\n1,0\n2,\n", "column 'y' lacks 1 of 2 values, the first in row 1"),
    "infinite": ("a,y\n1,0\ninf,1\n", "1 of 2 values are NaN or infinite"),
}


@pytest.mark.parametrize("kind", INVALID_TABLES)
def test_an_invalid_table_gives_a_one_line_error(tmp_path, kind):
    content, message = INVALID_TABLES[kind]
    with pytest.raises(DataError, match=message) as caught:
        Dataset.of(write(tmp_path / "bad.csv", content))
    assert "\n" not in str(caught.value)


def test_a_first_column_without_a_name_is_an_input_unless_it_numbers_the_rows(tmp_path):
    index = write(tmp_path / "index.csv", ",a,y\n0,5,1\n1,6,0\n2,7,1\n")
    assert Dataset.of(index, drop=["Unnamed: 0"]).features == ("a",)
    with pytest.raises(DataError, match="numbers the rows"):
        csv(path=index)
    assert csv(path=index, drop=["Unnamed: 0"]).train.features == ("a",)
    values = write(tmp_path / "values.csv", ",a,y\n0,5,1\n7,6,0\n2,7,1\n")
    assert Dataset.of(values).features == ("Unnamed: 0", "a")


def test_files_that_are_not_tables_are_errors(tmp_path):
    (tmp_path / "bytes.csv").write_bytes(bytes(range(256)) * 9)
    with pytest.raises(DataError, match=r"not a text file.*another encoding than UTF-8, read it by pandas\.read_csv"):
        Dataset.of(tmp_path / "bytes.csv")
    with pytest.raises(DataError, match="is a folder, not a data file"):
        Dataset.of(tmp_path)
    (tmp_path / "plain.csv.gz").write_bytes(b"a,b\n1,2\n")
    with pytest.raises(DataError, match="not a text file"):
        Dataset.of(tmp_path / "plain.csv.gz")
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(b"a,b\n" + b"1,2\n" * 999)[:-20])
    with pytest.raises(DataError, match="not a text file"):
        Dataset.of(tmp_path / "cut.csv.gz")
    (tmp_path / "data.docx").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"known: \.csv, .*\.npz"):
        Dataset.of(tmp_path / "data.docx")
    with pytest.raises(DataError, match="no column 'z'; its columns: a, b"):
        Dataset.of(write(tmp_path / "t.csv", "a,b\n1,2\n"), target="z")


def test_columns_of_frames_are_converted_by_type():
    frame = pd.DataFrame(
        {
            "truth": [True, False, True],
            "whole": pd.array([1, 2, 3], dtype="Int64"),
            "object": pd.Series([1.5, 2.5, 3.5], dtype=object),
            "text": ["b", "a", "b"],
            "kind": pd.Categorical(["lo", "hi", "lo"], categories=["lo", "mid", "hi"]),
            "y": pd.Categorical(["no", "yes", "no"], categories=["yes", "no"]),
        }
    )
    data = Dataset.of(frame, target="y")
    assert data.features == ("truth", "whole", "object", "text=a", "text=b", "kind=lo", "kind=mid", "kind=hi")
    assert data.inputs.tolist() == [[1, 1, 1.5, 0, 1, 1, 0, 0], [0, 2, 2.5, 1, 0, 0, 0, 1], [1, 3, 3.5, 0, 1, 1, 0, 0]]
    assert data.classes == ("yes", "no")
    assert data.targets.tolist() == [1, 0, 1]
    assert Dataset.of(frame, target="whole").targets.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pd.date_range("2020-01-01", periods=3), "'c' holds datetime64 values"),
        ([{}, {}, {}], "'c' holds mixed values"),
        (["a", 1, "b"], "'c' holds mixed-integer values"),
        ([1 + 1j, 2, 3], "'c' holds complex values"),
        (["a", None, "b"], "'c' lacks 1 of 3"),
    ],
)
def test_the_error_names_a_column_that_cannot_be_converted(column, message):
    with pytest.raises(DataError, match=message):
        Dataset.of(pd.DataFrame({"c": column, "y": [0, 1, 0]}))


def test_a_column_with_too_many_texts_is_rejected_with_the_ways_out(tmp_path):
    frame = pd.DataFrame({"id": [f"row {i}" for i in range(60)], "a": np.arange(60) / 7, "y": np.arange(60) / 2})
    with pytest.raises(
        DataError, match=r"'id' holds 60 different texts, more than 50: leave it out \(drop\), .*\(one_hot"
    ):
        Dataset.of(frame)
    assert Dataset.of(frame.astype({"id": "category"})).inputs.shape == (60, 61)
    frame.to_csv(tmp_path / "t.csv", index=False)
    options = {"path": str(tmp_path / "t.csv"), "standardize": False}
    assert DATASETS.create("csv", {**options, "drop": ["id"]}).train.features == ("a",)
    assert len(DATASETS.create("csv", {**options, "one_hot": ["id"]}).train.features) == 61
    with pytest.raises(DataError, match="no column 'no'; its columns: id, a, y"):
        DATASETS.create("csv", {**options, "drop": ["no"]})


def test_a_text_that_only_the_test_part_has_is_0_in_all_one_hot_columns(tmp_path):
    train = write(tmp_path / "train.csv", "c,y\nred,1\nblue,0\n")
    test = write(tmp_path / "test.csv", "c,y\ngreen,1\nred,0\n")
    split = Split.of((train, test))
    assert split.test.inputs.tolist() == [[0, 0], [0, 1]]
    assert split.test.features == split.train.features == ("c=blue", "c=red")
    with pytest.raises(DataError, match="columns of the test part differ"):
        Split.of((train, write(tmp_path / "other.csv", "d,y\nred,1\n")))


@pytest.mark.parametrize(("inputs", "targets"), [("inputs", "targets"), ("x", "y"), ("X", "y")])
def test_npz_files_have_one_pair_or_a_train_and_a_test_part(tmp_path, inputs, targets):
    x, y = np.arange(8).reshape(4, 2), np.array([0, 1, 0, 1])
    np.savez(tmp_path / "whole.npz", **{inputs: x, targets: y})
    assert Dataset.of(tmp_path / "whole.npz").inputs.tolist() == x.tolist()
    parts = {f"{inputs}_train": x, f"{targets}_train": y, f"{inputs}_test": x[1:2], f"{targets}_test": y[1:2]}
    np.savez_compressed(tmp_path / "parts.npz", **parts)
    for split in (
        Split.of(tmp_path / "parts.npz"),
        DATASETS.create("npz", {"path": str(tmp_path / "parts.npz")}),
    ):
        assert (len(split.train), split.test.inputs.tolist(), split.test.name) == (4, [[2, 3]], "parts.npz")
    with pytest.raises(DataError, match=r"read both with Split\.of"):
        Dataset.of(tmp_path / "parts.npz")


def test_invalid_npz_files_give_a_one_line_error(tmp_path):
    def check(name, message):
        with pytest.raises(DataError, match=message) as caught:
            Dataset.of(tmp_path / name)
        assert "\n" not in str(caught.value)

    np.savez(tmp_path / "other.npz", a=1, b=2)
    check("other.npz", "holds a, b: needed are inputs and targets")
    np.savez(tmp_path / "objects.npz", x=np.array([{}], object), y=[0])
    check("objects.npz", "cannot be read as .npz")
    (tmp_path / "text.npz").write_text("not a zip")
    check("text.npz", "cannot be read as .npz")
    (tmp_path / "empty.npz").write_bytes(b"")
    check("empty.npz", "cannot be read as .npz")
    with (tmp_path / "single.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    check("single.npz", "cannot be read as .npz")
    with zipfile.ZipFile(tmp_path / "none.npz", "w"):
        pass
    check("none.npz", "no named arrays")
    np.savez(tmp_path / "whole.npz", x=np.zeros((99, 99)), y=np.zeros(99))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "whole.npz").read_bytes()[:-300])
    check("cut.npz", "cannot be read as .npz")


def test_the_csv_data_set_accepts_options(tmp_path):
    rows = "\n".join(f"{i},{'even' if i % 2 == 0 else 'odd'},{i / 10}" for i in range(20))
    path = write(tmp_path / "t.csv", "n,parity,value\n" + rows)
    split = DATASETS.create(
        "csv", {"path": path, "target": "parity", "test_fraction": 0.25, "limit": 10, "standardize": True}
    )
    assert (len(split.train), len(split.test), split.train.classes) == (10, 5, ("even", "odd"))
    assert abs(split.train.inputs.mean()) < 1e-6
    split = DATASETS.create("csv", {"path": path, "test_path": path, "scale_target": True, "standardize": False})
    assert (len(split.train), len(split.test), split.train.features) == (20, 20, ("n", "parity=even", "parity=odd"))
    assert abs(split.train.targets.mean()) < 1e-6
    with pytest.raises(DataError, match="no data file"):
        DATASETS.create("csv", {"path": str(tmp_path / "none.csv")})
    with pytest.raises(ConfigurationError, match="needs the option 'path'"):
        DATASETS.create("csv")
    with pytest.raises(ConfigurationError, match="no option 'separator'"):
        DATASETS.create("csv", {"path": path, "separator": ";"})


@pytest.mark.parametrize(
    "first",
    ["city,2019,2020,kind", ",2019,2020,kind", "city,x,2020,kind", "0,1,2,3", ",0,1,2", "1,2,3,4"],
)
def test_a_first_line_that_may_have_names_or_values_is_refused(tmp_path, first):
    rows = "Rome,1.5,2.5,a\nBonn,2.5,3.5,b\nRome,0.5,1.5,b\nBonn,3.0,2.0,a\n"
    path = write(tmp_path / "t.csv", f"{first}\n{rows}")
    with pytest.raises(DataError, match="may be names of columns or values: set header to true or false") as caught:
        Dataset.of(path)
    assert "\n" not in str(caught.value)
    assert len(Dataset.of(path, header=True)) == 4


@pytest.mark.parametrize("first", ["Rome,1.5,2.5,b", "Rome,1.5,2.5,c", "Graz,1.5,2.5,a", "0,1,2,a", "1,2,3.5,4", "0,1"])
def test_a_first_line_with_values_is_a_row(tmp_path, first):
    rows = {4: "Rome,1.5,2.5,a\nBonn,2.5,3.5,b\n0,0.5,1.5,b\n", 2: "1,1\n2,0\n3,1\n"}[first.count(",") + 1]
    path = write(tmp_path / "t.csv", f"{first}\n{rows}")
    assert len(csv_file.read_csv(Path(path))) == rows.count("\n") + 1


def test_the_second_file_has_a_header_if_the_first_one_has_one(tmp_path):
    first = write(tmp_path / "train.csv", "1.5,true\n2.5,false\n0.5,true\n3.5,FALSE\n")
    second = write(tmp_path / "test.csv", "2.5,false\n")
    split = DATASETS.create("csv", {"path": first, "test_path": second})
    assert (len(split.train), len(split.test)) == (4, 1)

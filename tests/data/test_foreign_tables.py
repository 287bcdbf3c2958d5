"""Tables and arrays of other libraries: pyarrow, decimals, masks, sparse matrices, and frames with unclear rows or columns."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from torch import nn

import chimera
from chimera.core.errors import DataError
from chimera.data.readers.csv_file import read_csv
from chimera.data.readers.number_texts import odd_among_numbers
from chimera.data.split import Split

N = 40
LABELS = np.arange(N) % 2
INPUTS = np.random.default_rng(0).normal(size=(N, 2)) + 3 * LABELS[:, None]
FRAME = pd.DataFrame({"a": INPUTS[:, 0], "b": INPUTS[:, 1], "y": LABELS})


def rows(split: Split) -> Any:
    return np.sort(np.concatenate([split.train.values_of("inputs"), split.test.values_of("inputs")]), axis=0)  # type: ignore[union-attr]


def test_a_table_of_pyarrow_is_read_like_a_frame() -> None:
    table = pytest.importorskip("pyarrow").Table.from_pandas(FRAME)
    assert np.array_equal(rows(Split.of(table)), rows(Split.of(FRAME)))
    inputs = FRAME[["a", "b"]]
    pair = (pytest.importorskip("pyarrow").Table.from_pandas(inputs), FRAME["y"])
    assert np.array_equal(rows(Split.of(pair)), rows(Split.of(FRAME)))


def test_decimals_are_real_numbers() -> None:
    exact = FRAME.assign(b=[Decimal(str(value)) for value in FRAME["b"]])
    assert np.array_equal(rows(Split.of(exact)), rows(Split.of(FRAME)))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ((scipy.sparse.csr_matrix(INPUTS), LABELS), r"sparse matrix of SciPy .*: convert it by toarray\(\)"),
        ((np.ma.masked_array(INPUTS, INPUTS > 1e9), LABELS), None),
        ((np.ma.masked_greater(INPUTS, INPUTS.max() - 1e-9), LABELS), r"the inputs have 1 masked values: fill them"),
        (pd.concat([FRAME[["a"]], FRAME], axis=1), "the table has several columns 'a': rename or drop all but one"),
        (FRAME[["a", "b", "y", "y"]], "the table has several columns 'y': rename or drop all but one"),
        (FRAME.assign(b=["?", *map(str, range(1, N))]), r"'b' holds numbers, but also '\?': convert it to numbers"),
        (FRAME.assign(b=[*map(str, range(1, N)), "n/a"]), "'b' holds numbers, but also 'n/a'"),
        (FRAME.assign(b=[*map(str, range(1, N)), "12 kg"]), "'b' holds numbers, but also '12 kg'"),
        (FRAME.assign(b=["1,000", "2,500"] * (N // 2)), "'b' holds numbers, but also '1,000'"),
        (FRAME.assign(b=["5%", "12.5 %"] * (N // 2)), "'b' holds numbers, but also '12.5 %'"),
        (FRAME.assign(b=["$3", "-4"] * (N // 2)), r"'b' holds numbers, but also '\$3'"),
        (FRAME.assign(b=["3,5", "4,25"] * (N // 2)), "'b' holds numbers, but also '3,5'"),
        (FRAME.assign(b=pd.Categorical(["5%", "12.5 %"] * (N // 2))), None),
        (FRAME.assign(b=["0", "1", "2", "3+"] * (N // 4)), None),
        (FRAME.assign(b=["02139", "10115"] * (N // 2)), None),
        (FRAME.assign(b=["yes", "?"] * (N // 2)), None),
        (FRAME.assign(b=["?", "-"] * (N // 2)), None),
        (FRAME.assign(b=pd.date_range("2020", periods=N)), "holds datetime64 values: .*: convert it, or leave it out"),
        ((FRAME[["a", "b"]].iloc[::-1], FRAME["y"]), r"the same index in different orders: align them by targets.loc"),
        ((FRAME[["a", "b"]], FRAME["y"].reset_index(drop=True)), None),
        ((FRAME[["a", "b"]].iloc[::-1], FRAME["y"].to_numpy()), None),
    ],
)
def test_what_cannot_be_read_is_named(source: Any, message: str | None) -> None:
    if message is None:
        assert len(rows(Split.of(source))) == N
        return
    with pytest.raises(DataError, match=message) as caught:
        Split.of(source)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("header", ["a,a,y", 'a,"a",y', "a, a,y", "a,y,y"])
def test_a_csv_file_with_two_columns_of_one_name_is_refused(header: str, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text(f"{header}\n" + "1,2,0\n2,3,1\n" * 10)
    with pytest.raises(DataError, match=r"has several columns '[ay]': rename or remove all but one"):
        Split.of(tmp_path / "data.csv")
    (tmp_path / "data.csv").write_text("1,1,y\n" + "1,2,0\n2,3,1\n" * 10)
    assert len(Split.of(tmp_path / "data.csv", header=False).train) > 10


def test_a_mapping_of_arrays_trains(tmp_path: Path) -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = {"engine": "simulated", "workers": 2, "batch_size": 8, "epochs": 20, "progress": False}
    data = {"input": INPUTS, "labels": LABELS}
    run = chimera.train(nn.Linear(2, 2), data, optimizer={"name": "adam", "lr": 0.1}, out=tmp_path / "run", **options)
    assert run.metrics["accuracy"] > 0.9
    with pytest.raises(chimera.core.errors.ConfigurationError, match="a table with the keys 'input' needs a 'name'"):
        chimera.train(nn.Linear(2, 2), {"input": "x"}, **options)


def test_long_texts_and_many_columns_are_read_in_linear_time(tmp_path: Path) -> None:
    assert odd_among_numbers(["1" * 3_000_000 + "x", "2"]) is None
    path = tmp_path / "wide.csv"
    path.write_text(",".join(f"g{i}" for i in range(30_000)) + ",g7\n")
    with pytest.raises(DataError, match="several columns 'g7'"):
        read_csv(path)

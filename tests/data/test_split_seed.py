"""The split of a table depends on the seed of the data, and not on that of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from torch import nn

import chimera
from chimera.data.split import DATASETS


def table(folder: Path, kind: str) -> dict[str, Any]:
    """Write a table of 60 rows with their numbers; return the options of a data set."""
    frame = pd.DataFrame({"number": np.arange(60.0), "y": np.arange(60) % 3})
    path = folder / f"rows.{kind}"
    frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path)
    return {"path": str(path), "target": "y", "standardize": False}


def rows_of(part: Any) -> list[float]:
    return sorted(float(value) for value in np.asarray(part.inputs).ravel())


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_the_seed_of_the_data_decides_the_test_rows(tmp_path: Path, kind: str) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    options = table(tmp_path, kind)
    default, zero, one = (DATASETS.create(kind, {**options, **seed}) for seed in ({}, {"seed": 0}, {"seed": 1}))
    assert rows_of(default.test) == rows_of(zero.test) != rows_of(one.test)
    assert sorted(rows_of(one.test) + rows_of(one.train)) == list(range(60))


def test_runs_with_other_seeds_are_measured_on_the_same_rows(tmp_path: Path) -> None:
    """The metric is the mean of the row numbers of the test part."""
    found = []
    for seed in (0, 7):
        model, data = chimera.TorchModel(nn.Linear(1, 3), metrics={"rows": row_numbers}), table(tmp_path, "csv")
        out = tmp_path / f"run{seed}"
        run = chimera.train(model, {"name": "csv", **data}, engine="simulated", workers=1, rounds=1, seed=seed, out=out)
        found.append(run.metrics["rows"])
    split = DATASETS.create("csv", table(tmp_path, "csv"))
    assert found == [pytest.approx(np.mean(rows_of(split.test)))] * 2


def row_numbers(outputs: Any, batch: Any) -> float:
    return float(np.mean(np.asarray(batch[0])))

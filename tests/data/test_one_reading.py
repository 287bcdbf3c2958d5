"""One reading, one answer: the same table by name, by path, as a frame and as arrays; when it is standardized."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import chimera
from chimera.core.errors import ConfigurationError
from chimera.data.dataset import Dataset
from chimera.data.description import described
from chimera.data.scaling import Scaling, needs_scaling
from chimera.data.split import DATASETS, Split

RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {"age": RNG.normal(40, 9, 90), "income": RNG.normal(4e4, 9e3, 90), "label": RNG.integers(0, 3, 90)}
)


def in_every_form(folder: Path, frame: pd.DataFrame) -> dict[str, Any]:
    inputs, targets = frame.iloc[:, :-1].to_numpy(), frame.iloc[:, -1].to_numpy()
    frame.to_csv(folder / "t.csv", index=False)
    frame.to_parquet(folder / "t.parquet")
    np.savez(folder / "t.npz", x=inputs, y=targets)
    return {
        **{f"{kind} by name": {"name": kind, "path": str(folder / f"t.{kind}")} for kind in ("csv", "parquet", "npz")},
        **{f"{kind} by path": folder / f"t.{kind}" for kind in ("csv", "parquet", "npz")},
        "lazily": {"name": "parquet", "path": str(folder / "t.parquet"), "lazy": True},
        "a frame": frame,
        "arrays": (inputs, targets),
        "a frame and a series": (frame.iloc[:, :-1], frame.iloc[:, -1]),
        "data in memory": Dataset.of((inputs, targets)),
    }


def read(source: Any, **options: Any) -> Split:
    if isinstance(source, dict):
        return DATASETS.create(
            "csv" if "csv" in source["name"] else source["name"], {**_without_name(source), **options}
        )
    return Split.of(source, **options)


def _without_name(table: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key != "name"}


@pytest.mark.parametrize("scale", [1.0, 1e-3], ids=["raw", "small"])
def test_the_same_table_has_the_same_numbers_in_every_form(tmp_path: Path, scale: float) -> None:
    frame = FRAME.assign(age=FRAME["age"] / 40, income=FRAME["income"] * scale / 40)
    splits = {form: read(source) for form, source in in_every_form(tmp_path, frame).items()}
    first = splits["csv by name"]
    assert (first.train.input_scaling is not None) == (scale == 1)
    for form, split in splits.items():
        for part, expected in ((split.train, first.train), (split.test, first.test)):
            for found, wanted in zip(
                part.take(np.arange(len(part))), expected.take(np.arange(len(expected))), strict=True
            ):
                np.testing.assert_array_equal(found, wanted, err_msg=form)


def test_runs_on_every_form_reach_the_same_model(tmp_path: Path) -> None:
    forms = in_every_form(tmp_path, FRAME)
    found = []
    for form in ("csv by name", "csv by path", "arrays"):
        run = chimera.train(
            {"name": "mlp", "hidden": [4]}, forms[form], engine="simulated", rounds=2, out=tmp_path / form, batch_size=8
        )
        found.append(run.trained.parameters().copy())
        assert run.input_scaling is not None
        np.testing.assert_allclose(run.input_scaling.mean, FRAME[["age", "income"]].mean(), rtol=0.05)
    assert all(np.array_equal(weights, found[0]) for weights in found)


@pytest.mark.parametrize(
    ("inputs", "needed"),
    [
        (RNG.standard_normal((50, 3)), False),
        (RNG.integers(0, 17, (50, 64)).astype(float), False),
        (RNG.integers(0, 256, (50, 64)) / 255, False),
        (RNG.random((50, 3)) < 0.01, False),
        (np.zeros((50, 3)), False),
        (RNG.uniform(0, 10, (50, 2)), True),
        (RNG.integers(0, 11, (50, 2)).astype(float), False),
        (RNG.normal(2000, 5, (50, 1)), True),
        (RNG.standard_normal((50, 3)) * [1, 1e-4, 1], True),
        (RNG.integers(0, 256, (50, 64)).astype(float), True),
    ],
    ids=[
        "normal",
        "4-bit images",
        "8-bit images from 0 to 1",
        "rare flags",
        "zeros",
        "0 to 10",
        "grades",
        "years",
        "one is tiny",
        "8-bit images",
    ],
)
def test_features_that_are_too_large_or_too_different_need_scaling(inputs: Any, needed: bool) -> None:
    assert needs_scaling(np.asarray(inputs, np.float32)) == needed
    if needed:
        assert not needs_scaling(Scaling.of(np.asarray(inputs, np.float32)).apply(inputs))


def test_images_integers_and_splits_are_not_changed() -> None:
    labels = np.arange(20) % 2
    large = RNG.normal(500, 9, (20, 4))
    for source in (
        (large.reshape(20, 2, 2), labels),
        (RNG.integers(0, 9000, (20, 4)), labels),
        Split.of((large, labels), standardize=False),
        (RNG.integers(0, 9000, (20, 4)).tolist(), labels),
    ):
        assert Split.of(source).train.input_scaling is None
    assert Split.of((RNG.integers(0, 9000, (20, 4)), labels), standardize=True).train.input_scaling is not None
    once = Split.of((large, labels))
    assert "inputs 4, standardized" in described(once)
    twice = Split.of((once.train, once.test))
    np.testing.assert_array_equal(twice.train.take(np.arange(9))[0], once.train.take(np.arange(9))[0])


def test_the_choice_is_explicit_and_checked(tmp_path: Path) -> None:
    for form, source in in_every_form(tmp_path, FRAME).items():
        assert read(source, standardize=False).train.input_scaling is None, form
    with pytest.raises(ConfigurationError, match="standardize must be true, false or 'auto', not 'yes'"):
        Split.of(FRAME, standardize="yes")
    with pytest.raises(ConfigurationError, match="standardize"):
        DATASETS.create("csv", {"path": str(tmp_path / "t.csv"), "standardize": "yes"})


@settings(max_examples=30)
@given(
    rows=st.integers(1, 40),
    width=st.integers(1, 3),
    cuts=st.lists(st.integers(1, 39), max_size=4),
    seed=st.integers(0, 99),
)
def test_a_scaling_does_not_depend_on_how_rows_are_cut(rows: int, width: int, cuts: list[int], seed: int) -> None:
    values = np.random.default_rng(seed).normal(3, 2, (rows, width)).astype(np.float32)
    bounds = sorted({cut for cut in cuts if cut < rows})
    whole, cut = Scaling.of(values), Scaling.of(lambda: np.split(values, bounds))
    assert np.array_equal(whole.mean, cut.mean)
    assert np.array_equal(whole.deviation, cut.deviation)
    np.testing.assert_allclose(whole.mean, values.mean(axis=0, dtype=np.float64), rtol=1e-12)
    if rows > 1:
        np.testing.assert_allclose(whole.deviation, values.std(axis=0, dtype=np.float64), rtol=1e-9)

"""A node's data: what can be read, and the division into training and test rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chimera.core.errors import ConfigurationError, DataError
from chimera.federation.data.division import contents_of_array, contents_of_frame, divided, own_seed
from chimera.federation.data.loading import load, loaded
from chimera.training.worker.driver_schema import DriverSchema, NodeRequest
from federation.data_kit import fit, nodes, table, written

pytestmark = pytest.mark.usefixtures("own_folder")

ROWS = st.lists(st.binary(max_size=6), min_size=1, max_size=40)


@settings(deadline=None)
@given(rows=ROWS, more=ROWS, seed=st.integers(0, 2**64 - 1), fraction=st.floats(0, 0.99), other=st.floats(0, 0.99))
def test_the_part_of_a_row_depends_on_its_content_alone(
    rows: list[bytes], more: list[bytes], seed: int, fraction: float, other: float
) -> None:
    first = dict(zip(rows, divided(rows, fraction, seed).tolist(), strict=True))
    both = [*more, *rows[::-1]]
    again = dict(zip(both, divided(both, fraction, seed).tolist(), strict=True))
    assert all(again[row] == part for row, part in first.items())
    low, high = sorted((fraction, other))
    assert not (divided(rows, low, seed) & ~divided(rows, high, seed)).any()


def test_the_share_of_test_rows_is_near_the_fraction() -> None:
    rows = [str(number).encode() for number in range(4000)]
    found = [divided(rows, 0.2, seed).mean() for seed in range(3)]
    assert found == pytest.approx([0.2] * 3, abs=0.03)
    assert (divided(rows, 0.2, 0) != divided(rows, 0.2, 1)).any()
    assert not divided(rows, 0.0, 0).any()


def test_equal_rows_have_equal_contents() -> None:
    frame = pd.DataFrame({"a": [1, 2], "b": ["x", "y"], "c": [-0.0, 3.0]})
    same = pd.DataFrame({"c": [0.0, 3.0], "a": [1.0, 2.0], "b": ["x", "y"]})
    assert list(contents_of_frame(frame)) == list(contents_of_frame(same))
    assert list(contents_of_array(np.array([[1, 2]]))) == list(contents_of_array(np.array([[1.0, 2.0]], np.float32)))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"test_fraction": 1.0}, "test_fraction is 1.0: it must be at least 0 and below 1"),
        ({"split_seed": -1}, "the seed of the division is -1"),
        ({"split_by": "nothing"}, "no column 'nothing'|'nothing'"),
    ],
)
def test_options_that_cannot_be_used_are_named(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        written(tmp_path, [table()], **options)
    assert "\n" not in str(caught.value)


def test_rows_added_later_do_not_turn_test_rows_into_training_rows(tmp_path: Path) -> None:
    frame = table()
    (before,), (after,) = written(tmp_path, [frame[:100]]), written(tmp_path, [frame])
    np.testing.assert_array_equal(before.test, after.test[:100])


def test_rows_of_one_patient_stay_together(tmp_path: Path) -> None:
    frame = table()[:200]
    frame.insert(0, "patient", np.arange(200) // 5)
    (own,) = written(tmp_path, [frame], split_by="patient")
    assert own.columns is not None
    assert "patient" not in [column.name for column in own.columns]
    parts = own.test.reshape(40, 5)
    assert (parts.all(1) | ~parts.any(1)).all()
    assert 0 < own.test.sum() < 200


def test_a_node_without_a_training_row_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="node 'north' has no row to train on"):
        written(tmp_path, [table()[:1]], test_fraction=0.999999)


def test_parquet_and_csv_give_the_same_rows(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    frame = table()[:50].astype({"diagnosis": str})
    (one,), (other,) = written(tmp_path, [frame]), written(tmp_path, [frame], "parquet")
    np.testing.assert_array_equal(one.test, other.test)
    assert one.columns == other.columns
    assert one.classes == other.classes
    np.testing.assert_array_equal(one.targets, other.targets)


def test_the_target_may_be_any_column(tmp_path: Path) -> None:
    frame = table()[:50]
    frame = frame[["diagnosis", *frame.columns[:3]]]
    (own,) = written(tmp_path, [frame], target="diagnosis")
    assert own.task == "classification"
    assert own.columns is not None
    assert [column.name for column in own.columns] == list(frame.columns[1:])


def test_the_seed_of_a_node_is_drawn_once(tmp_path: Path) -> None:
    written(tmp_path, [table()])
    first = loaded(tmp_path / "north.csv", "north", {"test_fraction": 0.5, "target": "diagnosis"}, tmp_path / "node")
    again = loaded(tmp_path / "north.csv", "north", {"test_fraction": 0.5}, tmp_path / "node")
    other = loaded(tmp_path / "north.csv", "north", {"test_fraction": 0.5}, tmp_path / "other")
    np.testing.assert_array_equal(first.test, again.test)
    assert (first.test != other.test).any()
    assert [file.name for file in (tmp_path / "node").iterdir()] == ["division.seed"]
    assert (tmp_path / "node" / "division.seed").stat().st_mode & 0o777 == 0o600
    (tmp_path / "node" / "division.seed").write_text("1")
    with pytest.raises(ConfigurationError, match=r"division\.seed holds no seed of 16 hexadecimal digits"):
        own_seed(tmp_path / "node")
    with pytest.raises(ConfigurationError, match="the data of a node has no option 'fraction'"):
        loaded(tmp_path / "north.csv", "north", {"fraction": 0.5}, tmp_path / "other")


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no data file"):
        load(tmp_path / "nothing.csv", "north")
    (tmp_path / "empty.csv").write_text("a,b\n")
    with pytest.raises(DataError, match="a header and no rows"):
        load(tmp_path / "empty.csv", "north")


def arrays(path: Path, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    targets = np.arange(150) % 3
    np.savez(path, inputs=rng.normal(size=(150, 1, 4, 4)) + targets[:, None, None, None], targets=targets)
    return load(path, path.stem)


def test_nodes_train_on_arrays(tmp_path: Path) -> None:
    with nodes(tmp_path, [arrays(tmp_path / f"{name}.npz", seed) for seed, name in enumerate(("a", "b"))]) as urls:
        run = fit(urls, rounds=30)
    assert run.metrics["accuracy"] > 0.5


def test_no_test_row_is_a_training_row(tmp_path: Path) -> None:
    for own in (
        *written(tmp_path, [table()]),
        arrays(tmp_path / "a.npz", 0),
        images(tmp_path / "b", ("bright", "dark"), 0),
    ):
        model = {"name": "mlp"}
        request = NodeRequest(model, own.task, own.outputs, own.input_shape or (30,), own.columns)
        train, test = own.parts(DriverSchema((), own.shown, None, request=request), request)
        assert test is not None
        assert len(train) + len(test) == len(own.test)
        assert len(test) == own.test.sum() > 0
        kept, learned = (
            {np.asarray(row).tobytes() for row in rows.take(np.arange(len(rows)))[0]} for rows in (test, train)
        )
        assert not kept & learned


def images(folder: Path, classes: tuple[str, ...], seed: int) -> Any:
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(seed)
    for place, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for number in range(20):
            pixels = rng.integers(0, 60, (6, 6, 3)) + 190 * (name == "bright")
            image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{place}-{number}.png")
    return load(folder, folder.name, size=4)


@pytest.mark.long
def test_nodes_train_on_folders_of_images(tmp_path: Path) -> None:
    data = [images(tmp_path / "a", ("bright", "dark"), 0), images(tmp_path / "b", ("dark",), 1)]
    assert data[0].input_shape == (3, 4, 4)
    with nodes(tmp_path, data) as urls:
        with pytest.raises(DataError, match="node 'b' has the classes 'dark'"):
            fit(urls, rounds=1)
        strategy = {"name": "fed-avg", "local_steps": 4}
        run = fit(urls, data={"name": "nodes", "classes": ["bright", "dark"]}, strategy=strategy, rounds=25)
    assert run.metrics["accuracy"] == 1.0

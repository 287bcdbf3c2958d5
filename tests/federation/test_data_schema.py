"""The schema on which nodes agree: a node that differs is named with what differs, before any training."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from chimera.core.errors import ChimeraError, ConfigurationError, DataError
from chimera.data.nodes import nodes as declare
from chimera.data.scaling import Scaling
from chimera.federation.data.disclosure import Disclosure
from chimera.federation.data.learner import NodeDescriber
from chimera.federation.data.loading import load
from chimera.training.nodes_data.agreed import AgreedData
from chimera.training.nodes_data.agreement import agree
from federation.data_kit import MLP, USUAL, fit, nodes, written

pytestmark = pytest.mark.usefixtures("own_folder")

MODEL = {"name": "mlp"}


def people(rows: int = 60, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"age": rng.normal(60, 10, rows), "dose": rng.normal(1e-3, 1e-4, rows)})
    frame["sex"] = ["f", "m"] * (rows // 2)
    frame["ill"] = np.where(frame["age"] > 60, "yes", "no")
    return frame


def agreed(folder: Path, frames: list[pd.DataFrame], disclosure: Disclosure = USUAL, **declared: Any) -> AgreedData:
    data = written(folder, frames)
    return agree(declare(**declared), [NodeDescriber(own, disclosure).describe() for own in data], MODEL)


Change = Callable[[pd.DataFrame], pd.DataFrame]
DIFFERENT: dict[str, tuple[Change, str]] = {
    "missing column": (lambda f: f.drop(columns="dose"), "node 'west' lacks the column 'dose'"),
    "other name": (
        lambda f: f.rename(columns={"dose": "Dose"}),
        "node 'west' lacks the column 'dose' and has the column 'Dose', which node 'north' lacks",
    ),
    "one more": (
        lambda f: f.assign(ward=1).iloc[:, [0, 1, 4, 2, 3]], "node 'west' has the column 'ward', which node 'north' lacks",
    ),
    "texts for numbers": (
        lambda f: f.assign(age=np.where(f["age"] > 60, "old", "young")),
        "node 'west' has texts in the column 'age', node 'north' has numbers in the column 'age'",
    ),
    "another text": (
        lambda f: f.assign(sex="x"), "node 'north' has no row with 'x' in the column 'sex', which other nodes have",
    ),
    "fewer classes": (
        lambda f: f.assign(ill="no"),
        "has the classes 'no', node 'north' has the classes 'no', 'yes': declare all, .data. classes",
    ),
    "numbers as target": (
        lambda f: f.assign(ill=f["age"]),
        "node 'west' has a target for regression, node 'north' has a target for classification",
    ),
}  # fmt: skip


@pytest.mark.parametrize("difference", DIFFERENT)
def test_a_node_that_differs_is_named_with_what_differs(tmp_path: Path, difference: str) -> None:
    change, said = DIFFERENT[difference]
    with pytest.raises(DataError, match=said) as caught:
        agreed(tmp_path, [people(seed=0), people(seed=1), change(people(seed=2))])
    assert "\n" not in str(caught.value)


def test_the_first_node_is_named_if_it_is_the_odd_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="node 'north' lacks the column 'dose'"):
        agreed(tmp_path, [people().drop(columns="dose"), people(seed=1), people(seed=2)])


def test_another_order_of_columns_changes_nothing(tmp_path: Path) -> None:
    frames = [people(seed=0), people(seed=1)]
    options: dict[str, Any] = {"strategy": {"name": "fed-avg", "local_steps": 2}, "rounds": 4}
    with nodes(tmp_path, written(tmp_path, frames)) as urls:
        expected = fit(urls, MLP, **options)
    frames[1] = frames[1][["sex", "dose", "age", "ill"]]
    with nodes(tmp_path, written(tmp_path, frames)) as urls:
        run = fit(urls, MLP, **options, out=tmp_path / "other")
    np.testing.assert_array_equal(run.trained.parameters(), expected.trained.parameters())
    assert run.metrics == expected.metrics


def test_declared_classes_and_texts_allow_nodes_to_lack_some(tmp_path: Path) -> None:
    frames = [people(seed=0), people(seed=1).assign(sex="f", ill="no")]
    data = {"name": "nodes", "classes": ["no", "yes", "maybe"], "categories": {"sex": ["m", "f", "x"]}}
    with nodes(tmp_path, written(tmp_path, frames)) as urls:
        run = fit(urls, MLP, data=data, strategy={"name": "fed-avg", "local_steps": 2}, rounds=3)
    assert run.trained.layout.shapes[0] == (8, 5)
    assert run.trained.layout.shapes[-1] == (3,)
    with pytest.raises(DataError, match=r"node 'north' has the class 'yes', which \[data\] classes does not declare"):
        agreed(tmp_path, frames, classes=("no", "maybe"), categories={"sex": ("f", "m")})
    with pytest.raises(
        DataError, match=r"node 'north' has 'm' in the column 'sex', which \[data\] categories does not declare"
    ):
        agreed(tmp_path, frames, classes=("no", "yes"), categories={"sex": ("f", "x")})


def test_owners_may_declare_what_their_rows_lack(tmp_path: Path) -> None:
    """A driver then sees neither which labels nor which texts a node has."""
    frames = [people(seed=0), people(seed=1).assign(sex="f", ill="no")]
    data = written(tmp_path, frames, classes=["no", "yes"], categories={"sex": ["f", "m"]})
    one, other = (NodeDescriber(own, Disclosure(rows=False, min_rows=1)).describe() for own in data)
    assert replace(one, node="") == replace(other, node="")
    with nodes(tmp_path, data) as urls:
        run = fit(urls, MLP, strategy={"name": "fed-avg", "local_steps": 2}, rounds=3)
    assert run.trained.layout.shapes[-1] == (2,)
    for options, said in (
        ({"classes": ["no"]}, "node 'north' has rows of the class 'yes', which its owner does not declare"),
        ({"categories": {"sex": ["f"]}}, "node 'north' has 'm' in the column 'sex', which its owner does not declare"),
        ({"categories": {"age": ["f"]}}, "node 'north' has no column of texts 'age'; it has: sex"),
        (
            {"classes": ["1", "2"], "target": "age", "drop": ["sex", "ill"]},
            "has values to predict, and no classes to declare",
        ),
    ):
        with pytest.raises(DataError, match=said):
            written(tmp_path, frames, **options)


def test_merged_statistics_equal_those_of_all_training_rows(tmp_path: Path) -> None:
    frames = [people(seed=0), people(40, seed=1), people(seed=2)]
    found = agreed(tmp_path, frames, Disclosure(statistics=True))
    data = written(tmp_path, frames)
    rows = pd.concat([own.frame[~own.test] for own in data])[["age", "dose"]]  # type: ignore[attr-defined]
    expected = Scaling.of(rows.to_numpy(np.float32))
    assert found.scaled == "statistics"
    assert found.input_scaling is not None
    np.testing.assert_allclose(found.input_scaling.mean[:2], expected.mean, rtol=1e-9)
    np.testing.assert_allclose(found.input_scaling.deviation[:2], expected.deviation, rtol=1e-6)
    assert found.input_scaling.mean[2:].tolist() == [0, 0]
    assert found.input_scaling.deviation[2:].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("disclosure", "declared", "said"),
    [
        (Disclosure(), {}, "each node's own training rows"),
        (Disclosure(statistics=True), {}, "statistics of the training rows of all nodes"),
        (Disclosure(statistics=True), {"standardize": "each"}, "each node's own training rows"),
        (Disclosure(), {"scaling": {"age": [60.0, 10.0], "dose": [1e-3, 1e-4]}}, "declared constants"),
        (Disclosure(statistics=True), {"standardize": False}, "no scaling"),
    ],
)
def test_data_json_says_by_what_columns_were_scaled(
    tmp_path: Path, disclosure: Disclosure, declared: Any, said: str
) -> None:
    with nodes(tmp_path, written(tmp_path, [people(), people(seed=1)]), disclosure) as urls:
        run = fit(urls, MLP, rounds=1, data={"name": "nodes", **declared})
    held = json.loads((tmp_path / "run" / "data.json").read_text())
    assert held["scaled_by"] == said
    assert [column["name"] for column in held["columns"]] == ["age", "dose", "sex"]  # by name
    assert held["nodes"][0]["node"] == "north"
    assert (run.input_scaling is None) == (said in ("no scaling", "each node's own training rows"))


def test_statistics_that_a_node_does_not_give_are_not_in_its_description(tmp_path: Path) -> None:
    (own,) = written(tmp_path, [people()])
    assert NodeDescriber(own, Disclosure()).describe().statistics is None
    assert NodeDescriber(own, Disclosure(statistics=True, min_rows=100)).describe().statistics is None
    assert NodeDescriber(own, Disclosure(rows=False)).describe().rows is None
    assert NodeDescriber(own, Disclosure(min_rows=100)).describe().metrics == "none"
    with pytest.raises(ConfigurationError, match="node 'north' does not give the statistics of its columns"):
        agreed(tmp_path, [people(), people(seed=1)], standardize="statistics")


def test_a_node_that_hides_its_number_of_rows_counts_as_declared(tmp_path: Path) -> None:
    with nodes(tmp_path, written(tmp_path, [people(), people(seed=1)]), Disclosure(rows=False)) as urls:
        with pytest.raises(
            ConfigurationError, match="node 'north' does not give its number of rows: set the number to assume"
        ):
            fit(urls, MLP, rounds=1)
        strategy = {"name": "fed-avg", "local_epochs": 1, "weighted": True}
        run = fit(urls, MLP, data={"name": "nodes", "rows_per_node": 100}, strategy=strategy, rounds=2)
    assert run.cost.samples == 2 * 2 * 100
    assert json.loads((tmp_path / "run" / "data.json").read_text())["nodes"][0]["rows"] is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"classes": ["a"]}, "give at least two different labels"),
        ({"scaling": {"age": [0.0, 0.0]}}, "is not a mean and a deviation above 0"),
        ({"scaling": {"age": [0.0, 1.0]}, "standardize": "each"}, "has both 'scaling' and 'standardize'"),
        ({"rows_per_node": 0}, "must be at least 1, not 0"),
        ({"scaling": {"weight": [0.0, 1.0]}}, "the nodes have no column of numbers 'weight'"),
        ({"categories": {"age": ["a"]}}, "the nodes have no column of texts 'age'"),
    ],
)
def test_declarations_that_cannot_be_used_are_named(tmp_path: Path, options: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        agreed(tmp_path, [people(), people(seed=1)], **options)


def test_a_test_share_of_clients_is_refused(tmp_path: Path) -> None:
    with (
        nodes(tmp_path, written(tmp_path, [people(), people(seed=1)])) as urls,
        pytest.raises(ConfigurationError, match="nodes keep test rows of their own choice"),
    ):
        fit(urls, MLP, rounds=1, evaluate_clients=True, test_per_client=0.2)


def test_nodes_that_host_no_data_are_named_in_one_line(tmp_path: Path) -> None:
    from chimera.nodes.workers import TorchWorker
    from nodes.served import serving, settings, write_data

    write_data(tmp_path / "tree1", [[0.0], [1.0]], [0, 1])
    own = settings(tmp_path)
    with (
        serving(TorchWorker("mlp", settings=own).app(), own) as url,
        pytest.raises(ChimeraError, match="no node hosts") as caught,
    ):
        fit([url], rounds=1)
    assert "\n" not in str(caught.value)


def test_two_nodes_of_one_name_are_refused(tmp_path: Path) -> None:
    people().to_csv(tmp_path / "a.csv", index=False)
    data = [load(tmp_path / "a.csv", "same") for _ in range(2)]
    with nodes(tmp_path, data) as urls, pytest.raises(DataError, match="two nodes have the name 'same'"):
        fit(urls, rounds=1)

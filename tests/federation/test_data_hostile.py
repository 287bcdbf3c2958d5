"""Nodes that lie about their data or their evaluation, and nodes that are lost: the driver names them, and continues."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chimera.core.errors import ChimeraError, DataError
from chimera.federation.data import learner
from chimera.federation.data.disclosure import Disclosure
from chimera.training.nodes_data.description import Column, DataDescription, Statistics
from chimera.training.nodes_data.evaluation import Measured
from federation.data_kit import fit, nodes, table, thirds, written

pytestmark = pytest.mark.usefixtures("own_folder")

LIES: dict[str, Callable[[DataDescription], Any]] = {
    "no description": lambda _: 3,
    "no name": lambda said: replace(said, node=""),
    "long name": lambda said: replace(said, node="n" * 10_000),
    "columns twice": lambda said: replace(said, columns=(Column("a"), Column("a"))),
    "no columns": lambda said: replace(said, columns=()),
    "classes twice": lambda said: replace(said, classes=("a", "a")),
    "no classes": lambda said: replace(said, classes=None),
    "negative rows": lambda said: replace(said, rows=-1),
    "endless rows": lambda said: replace(said, rows=1 << 60),
    "shape of a table": lambda said: replace(said, input_shape=(1 << 60,)),
    "negative shape": lambda said: replace(said, columns=None, input_shape=(-1,)),
    "statistics of other columns": lambda said: replace(said, statistics=Statistics(3, (0.0,), (1.0,))),
    "negative spread": lambda said: replace(said, statistics=Statistics(3, (0.0,) * 30, (-1.0,) * 30)),
    "infinite mean": lambda said: replace(said, statistics=Statistics(3, (float("inf"),) * 30, (1.0,) * 30)),
    "statistics of no rows": lambda said: replace(said, statistics=Statistics(0, (0.0,) * 30, (1.0,) * 30)),
}


@pytest.mark.parametrize("lie", [lie for lie in LIES if lie != "no description"])
def test_a_false_description_is_refused(tmp_path: Path, lie: str) -> None:
    (own,) = written(tmp_path, thirds(table())[:1])
    honest = learner.NodeDescriber(own, Disclosure()).describe()
    honest.check()
    with pytest.raises(DataError, match="sent an invalid description of its data") as caught:
        LIES[lie](honest).check()
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("lie", ["no description", "endless rows"])
def test_a_run_with_a_false_description_ends_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: str
) -> None:
    honest = learner.NodeDescriber.describe

    def lying(self: Any) -> Any:
        said = honest(self)
        return LIES[lie](said) if said.node == "west" else said

    monkeypatch.setattr(learner.NodeDescriber, "describe", lying)
    with (
        nodes(tmp_path, written(tmp_path, thirds(table()))) as urls,
        pytest.raises(ChimeraError, match="description") as caught,
    ):
        fit(urls, rounds=1)
    assert "\n" not in str(caught.value)


FALSE: dict[str, Any] = {
    "no evaluation": 3,
    "no rows": Measured("west", 5, {"loss": (1.0, 0.0)}),
    "negative rows": Measured("west", -5, {}),
    "another metric": Measured("west", 5, {"loss": (1.0, 5.0), "secret": (1.0,)}),
    "another form": Measured("west", 5, {"loss": (1.0, 5.0), "accuracy": (1.0, 2.0, 3.0)}),
    "infinite counts": Measured("west", 5, {"loss": (1.0, 5.0), "accuracy": (float("inf"), 1.0)}),
    "long name": Measured("w" * 1000, 5, {"loss": (1.0, 5.0), "accuracy": (1.0, 5.0)}),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("false", FALSE)
def test_a_node_with_a_false_evaluation_is_lost_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, false: str
) -> None:
    honest = learner.OwnDataLearner.measure

    def lying(self: Any, *weights: Any) -> Any:
        said = honest(self, *weights)
        return FALSE[false] if said.node == "west" else said

    monkeypatch.setattr(learner.OwnDataLearner, "measure", lying)
    with nodes(tmp_path, written(tmp_path, thirds(table()))) as urls:
        run = fit(urls, rounds=4, on_worker_loss="drop", evaluate_every=2)
    lost = [event for event in run.events if event.event == "worker lost"]
    assert [event.actor for event in lost] == ["worker 2"]
    assert run.cost.rounds == 4
    assert set(run.metrics) == {"loss", "accuracy"}


def test_a_killed_worker_is_made_again_at_its_node(tmp_path: Path) -> None:
    data = written(tmp_path, thirds(table()))
    strategy = {"name": "fed-avg", "local_steps": 2}
    with nodes(tmp_path, data) as urls:
        expected = fit(urls, strategy=strategy, rounds=8)
        run = fit(urls, strategy=strategy, rounds=8, faults=["kill worker 1 at step 6"], out=tmp_path / "killed")
    assert [event.event for event in run.events if event.actor == "worker 1"][-2:] == [
        "worker lost",
        "worker respawned",
    ]
    np.testing.assert_array_equal(run.trained.parameters(), expected.trained.parameters())
    assert run.metrics == expected.metrics


def test_a_run_resumes_from_its_checkpoint(tmp_path: Path) -> None:
    strategy = {"name": "scaffold", "local_steps": 2}
    with nodes(tmp_path, written(tmp_path, thirds(table()))) as urls:
        whole = fit(urls, strategy=strategy, rounds=6, checkpoint_every=3)
        fit(urls, strategy=strategy, rounds=3, checkpoint_every=3, out=tmp_path / "half")
        half = fit(urls, strategy=strategy, rounds=6, checkpoint_every=3, out=tmp_path / "half", resume=True)
    np.testing.assert_array_equal(half.trained.parameters(), whole.trained.parameters())


def test_a_node_whose_rows_change_before_it_joins_is_named(tmp_path: Path) -> None:
    """A node checks the schema of a run itself: the driver may have asked it before its data changed."""
    north, south, _ = written(tmp_path, thirds(table()))
    (other,) = written(tmp_path, [table().drop(columns="mean radius")])

    honest = learner.NodeDescriber

    class Changed(honest):  # type: ignore[valid-type,misc]
        def describe(self) -> Any:
            return replace(honest(south, self._disclosure).describe(), node=self._data.node)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learner, "NodeDescriber", Changed)
        with (
            nodes(tmp_path, [north, replace(other, node="south")]) as urls,
            pytest.raises(DataError, match="node 'south' lacks the column 'mean radius' of the run"),
        ):
            fit(urls, rounds=1)

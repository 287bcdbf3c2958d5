"""A run without central data over a hub: the same as over HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chimera
from chimera.federation.data.disclosure import Disclosure
from chimera.federation.data.learner import node_actors
from federation.data_kit import MLP, fit, nodes, table, thirds, written

pytest.importorskip("chimera.engines.federation")
pytest.importorskip("federation.federation_kit")
pytestmark = pytest.mark.usefixtures("own_folder")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "strategy", [{"name": "scaffold", "local_steps": 2}, "parameter-server"], ids=["scaffold", "server"]
)
def test_nodes_that_dial_out_give_the_same_run(tmp_path: Path, strategy: Any) -> None:
    from federation.federation_kit import federation

    data, disclosure = written(tmp_path, thirds(table())), Disclosure(metrics="own")
    with nodes(tmp_path, data, disclosure) as urls:
        expected = fit(urls, strategy=strategy, rounds=6)
    names = [own.node for own in data]
    with federation(tmp_path / "hub") as made:
        for own in data:
            made.node(own.node, kinds=node_actors(own, disclosure))
        made.join("requester", "alice")
        engine = {"name": "federation", "hub": made.url, "identity": str(tmp_path / "hub" / "alice"), "nodes": names}
        options = {"workers": 3, "optimizer": {"name": "sgd", "lr": 0.1}, "batch_size": 20, "out": tmp_path / "over"}
        run = chimera.train(MLP, engine=engine, strategy=strategy, rounds=6, **options)
    assert run.events == []
    np.testing.assert_array_equal(run.trained.parameters(), expected.trained.parameters())
    assert run.metrics == expected.metrics
    assert list(json.loads((tmp_path / "over" / "summary.json").read_text())["nodes"]) == names

"""A hub and three nodes on this machine train together: python -m pytest."""

from pathlib import Path

import chimera
from chimera.federation.hub.demo import NODES, demo


def test_three_nodes_train_together(tmp_path):
    experiment = chimera.Experiment.load(Path(__file__).with_name("experiment.toml"))
    folder = tmp_path / "federation"
    with demo(folder):
        here = [f"engine.identity={folder / 'alice'}", "train.rounds=3"]
        run = experiment.with_settings(here).trainer(out=tmp_path / "run").fit()
    assert run.cost.rounds == 3
    assert len(experiment.tables["engine"]["nodes"]) == len(NODES)

"""Train over a hub on three nodes that keep their data, all on this machine.

    python examples/federation/train.py

The first step starts a hub and three nodes as processes, like `chimera hub demo`. Each node has an identity of its own and a
third of breast-cancer. docs/how-to/federation.md has the commands for several machines.
"""

import tempfile
from pathlib import Path

from chimera.federation.hub.demo import EXPERIMENT, NODES, demo
from chimera.training.experiment.experiment import Experiment

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "federation"
        with demo(folder) as url:
            print(f"the hub serves at {url}, and {', '.join(NODES)} are connected")
            run = Experiment.load(folder / EXPERIMENT).trainer(out=folder / "run").fit()
        print(f"{run.cost.rounds} rounds on {len(NODES)} nodes: accuracy {run.metrics['accuracy']:.3f}")

"""D-PSGD over each topology, in virtual time: spectral gap, accuracy, and consensus distance of the workers' models.

    python benchmarks/topologies.py --picture docs/images/decentralised.png

Sixteen workers, each with digits of few classes, over links of 1 MB/s: with fewer neighbours, rounds are faster, but models
differ more.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import chimera
from chimera.strategies.d_psgd import DPSGD
from chimera.strategies.topologies.topology import topology_of

TOPOLOGIES: dict[str, Any] = {
    "ring": "ring",
    "torus": "torus",
    "exponential": "exponential",
    "one-peer exponential": {"name": "exponential", "one_peer": True},
    "random-regular, 3": "random-regular",
    "random-pairs": "random-pairs",
    "star": "star",
    "complete": "complete",
}
NETWORK = {"latency_s": 1e-3, "bandwidth_bytes_s": 1e6}


def trained(topology: Any, workers: int, epochs: int) -> chimera.Run:
    with tempfile.TemporaryDirectory() as folder:
        return chimera.train(
            {"name": "mlp", "hidden": [32]},
            "digits",
            strategy=DPSGD(topology=topology),
            engine={"name": "simulated", "network": NETWORK},
            partition="by-label",
            workers=workers,
            batch_size=8,
            optimizer={"name": "sgd", "lr": 0.2},
            epochs=epochs,
            seed=1,
            out=Path(folder) / "run",
        )


def draw(runs: dict[str, chimera.Run], picture: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    distance, accuracy = figure.subplots(1, 2)
    for name, run in runs.items():
        rows = [row for row in run.rows if "consensus_distance" in row]
        distance.semilogy(
            [row["round"] for row in rows], [row["consensus_distance"] for row in rows], label=name, lw=1.2
        )
        accuracy.plot([row["seconds"] for row in rows], [row["accuracy"] for row in rows], lw=1.2)
    distance.set(xlabel="Rounds", ylabel="Consensus distance")
    accuracy.set(xlabel="Virtual time (s)", ylabel="Accuracy of the mean model, test set")
    figure.legend(loc="outside right center", fontsize=8, frameon=False)
    figure.savefig(picture, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--picture", type=Path)
    arguments = parser.parse_args()
    print("| topology | neighbours | spectral gap | consensus distance | accuracy | virtual time, s |")
    print("|---|---|---|---|---|---|")
    runs = {}
    for name, table in TOPOLOGIES.items():
        runs[name] = run = trained(table, arguments.workers, arguments.epochs)
        rows = topology_of(table).mixing(range(arguments.workers), 0).rows
        neighbours = sorted({len(row) - 1 for row in rows})
        gap, metrics = run.figures["spectral_gap"], run.metrics
        cells = f"{' or '.join(map(str, neighbours))} | {gap:.3f} | {metrics['consensus_distance']:.3f}"
        print(f"| {name} | {cells} | {metrics['accuracy']:.3f} | {run.cost.seconds:.1f} |", flush=True)
    if arguments.picture:
        draw(runs, arguments.picture)


if __name__ == "__main__":
    main()

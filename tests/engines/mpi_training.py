"""A program for all ranks of a job: short runs on the engine mpi, compared with those in virtual time.

Usage: ``mpiexec -n 3 python -m engines.mpi_training FOLDER STRATEGY...``; prints each strategy whose weights are equal.
``STRATEGY:PLACEMENT`` sets the placement of servers.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import embedding_kit
from chimera.training.trainer import Trainer


def main(folder: str, *strategies: str) -> None:
    for strategy in strategies:
        found = []
        name, _, placement = strategy.partition(":")
        for engine in ("mpi", "simulated"):  # other ranks than 0 stay in the first call
            trainer = Trainer(
                embedding_kit.Embedding(),
                embedding_kit.windows(400),
                strategy={"name": name, **({"placement": placement} if placement else {})},
                engine=engine,
                workers=2,
                batch_size=20,
                rounds=10,
                optimizer={"name": "sgd", "lr": 0.1},
                out=Path(folder, f"{name}-{placement}-{engine}"),
                progress=False,
            )
            found.append(trainer.fit().trained.parameters())
        if np.array_equal(*found):
            print(strategy, flush=True)  # noqa: T201 - the test reads this


if __name__ == "__main__":
    main(*sys.argv[1:])

"""One run of Chimera: on Ray over the links, or in virtual time over modelled ones.

``python -m slow_links_chimera SETTINGS`` prints a line of JSON. ``slow_links.py`` starts it in the driver's namespace.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from slow_links_ddp import BATCH, OPTIMIZER, arrays

IMAGES = 6400  # the first ones, since Ray sends all of them before the training
STRATEGIES = {
    "all-reduce": {"strategy": "all-reduce"},
    "all-reduce, powersgd": {"strategy": "all-reduce", "codec": {"name": "powersgd", "rank": 2}},
    "parameter server": {"strategy": "parameter-server"},
    "parameter server, int8 both ways": {
        "strategy": "parameter-server",
        "codec": {"name": "int8", "downlink": {"name": "int8", "block": 256}},
    },
}


def train_chimera(
    run: str, network: str, engine: dict[str, Any], workers: int, rounds: int, log_every: int
) -> dict[str, Any]:
    """Train for some rounds; return the samples/s after the first ``log_every`` rounds, and the last row of the history."""
    from chimera.training.trainer import Trainer

    with tempfile.TemporaryDirectory() as folder:
        result = Trainer(
            f"{Path(__file__).parent / 'slow_links_ddp.py'}:{network}",
            tuple(tuple(array[:IMAGES] for array in part) for part in arrays()),
            **STRATEGIES[run],
            engine=engine,
            workers=workers,
            batch_size=BATCH,
            optimizer={"name": "sgd", **OPTIMIZER},
            rounds=rounds,
            log_every=log_every,
            evaluate_every=10**9,
            out=Path(folder) / "run",
        ).fit()
    first, last = result.rows[0], result.rows[-1]
    return {"samples_s": (last["samples"] - first["samples"]) / (last["seconds"] - first["seconds"]), "row": last}


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Ray prints
    print(json.dumps(train_chimera(**json.loads(sys.argv[1])), default=float), file=out, flush=True)


if __name__ == "__main__":
    main()

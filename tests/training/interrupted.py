"""A training script for the tests of resuming: it kills itself, or is interrupted, at a given round.

Arguments: the run's folder, engine and strategy as JSON, how many rounds, after which round to die, how (``SIGKILL``,
``SIGINT``), and further options as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys

import chimera


class KillAtRound(chimera.Callback):
    def __init__(self, round_: int, how: str) -> None:
        self.round, self.how = round_, how

    def on_progress(self, progress: chimera.Progress) -> None:
        if progress.rounds == self.round:
            os.kill(os.getpid(), getattr(signal, self.how))


def main() -> None:
    out, engine, strategy, rounds, dies_at, how, *more = sys.argv[1:]
    schedule = {"decay": "linear", "warm_up": 0.2}
    options = {
        "optimizer": {"name": "adam", "lr": 5e-3, "schedule": schedule},
        "evaluate_every": 9,
        "checkpoint_every": 4,
    }
    chimera.train(
        {"name": "mlp", "hidden": [16], "dropout": 0.2, "batch_norm": True},
        "digits",
        engine=json.loads(engine),
        strategy=json.loads(strategy),
        workers=3,
        batch_size=16,
        rounds=int(rounds),
        log_every=1,
        callbacks=[KillAtRound(int(dies_at), how)],
        out=out,
        resume=True,
        **options | (json.loads(more[0]) if more else {}),
    )


if __name__ == "__main__":
    main()

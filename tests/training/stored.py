"""A training script for the tests of object stores.

Arguments: the run's folder or URL, and a JSON object: ``kill_at`` (kill this process after this round, when the location has
the checkpoint of ``kill_with``), ``paced`` (print the start and events, and run until stdin ends), and arguments of
`chimera.Trainer`. The last line on stdout is the location and the peak memory of this process in MB.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path

import chimera
from chimera.training.artifacts.object_store import ObjectStore

LIMIT_S = 300.0


class KillWhenStored(chimera.Callback):
    def __init__(self, location: str, round_: int, checkpoint: int) -> None:
        self.location, self.round, self.checkpoint = location, round_, f"round-{checkpoint:09d}.safetensors"

    def on_progress(self, progress: chimera.Progress) -> None:
        if progress.rounds != self.round:
            return
        deadline_s = time.monotonic() + LIMIT_S
        while self.checkpoint not in self.checkpoints():
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)

    def checkpoints(self) -> list[str]:
        if "://" in self.location:
            return ObjectStore(self.location).checkpoints()
        return [path.name for path in Path(self.location, "checkpoints").iterdir()]


class Paced(chimera.Callback):
    def on_start(self, progress: chimera.Progress) -> None:
        say("training")

    def on_progress(self, progress: chimera.Progress) -> None:
        time.sleep(0.02)

    def on_event(self, event: chimera.Event) -> None:
        say(event.event)


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    location, options = sys.argv[1], json.loads(sys.argv[2])
    callbacks: list[chimera.Callback] = []
    if kill_at := options.pop("kill_at", 0):
        callbacks.append(KillWhenStored(location, kill_at, options.pop("kill_with")))
    paced = options.pop("paced", False)
    trainer = chimera.Trainer(
        **{
            "model": {"name": "mlp", "hidden": [16], "dropout": 0.2},
            "data": "digits",
            "engine": "simulated",
            "workers": 3,
            "batch_size": 16,
            "rounds": 22,
            "log_every": 1,
            "evaluate_every": 9,
            "checkpoint_every": 4,
            "resume": True,
            **options,
        },
        callbacks=[*callbacks, *([Paced()] if paced else [])],
        out=location,
    )
    if paced:
        threading.Thread(target=lambda: (sys.stdin.read(), trainer.stop()), daemon=True).start()
    run = trainer.fit()
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    say(f"{run.location} {peak_kb // 1000}")


if __name__ == "__main__":
    main()

"""A training script for the tests of preemption: it signals itself, or all processes of its run, at a chosen moment.

Its argument is a JSON object: the run's folder ``out``, ``engine``, ``strategy``, ``rounds``, the moment ``at`` (``round``,
``evaluation``, ``write``, ``finalizer``, ``start`` or ``never``), the name of the signal ``how``, whether ``all`` processes
receive it, whether it is sent ``twice``, and further ``options`` of the trainer.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from typing import Any

import psutil
import torch
from preempted_net import build, during_evaluation
from sklearn.datasets import load_digits

import chimera
from chimera.training.artifacts.checkpoint import Checkpoints
from chimera.training.run import interrupt

ROUND = 6
GIVEN: dict[str, Any] = json.loads(sys.argv[1]) if __name__ == "__main__" else {}
DRIVER = os.getpid()
NOTED = threading.Event()
"""Set when the run has received a signal."""


def send() -> None:
    """Signal this process, or all processes of the run as a scheduler may do."""
    number = getattr(signal, GIVEN["how"])
    for _ in range(2 if GIVEN.get("twice") else 1):
        others = psutil.Process(DRIVER).children(recursive=True) if GIVEN.get("all") else []
        for process in (*others, psutil.Process(DRIVER)):
            process.send_signal(number)
        NOTED.wait()  # otherwise the system may merge the two
        interrupt.ECHO_S = -1.0  # the second signal is no echo of the first


class Sends:
    """An object whose finalizer signals."""

    def __del__(self) -> None:
        send()


class AtRound(chimera.Callback):
    """Signals when a round is complete."""

    def on_progress(self, progress: chimera.Progress) -> None:
        if GIVEN["at"] == "round" and progress.rounds == ROUND:
            send()
        if GIVEN["at"] == "finalizer" and progress.rounds == ROUND:
            Sends()

    def on_wait(self, what: str) -> None:
        if GIVEN["at"] == "start" and "worker" in what:
            send()


def observe_signals() -> None:
    """Set `NOTED` when a signal arrives; before the first round that ends the run."""
    note = interrupt.Interrupt._note

    def noted(*args: Any) -> None:
        NOTED.set()
        note(*args)

    interrupt.Interrupt._note = noted  # type: ignore[method-assign]


def signal_during_write() -> None:
    """Signal while the first checkpoint is being written; with ``twice``, no write ends."""
    write = Checkpoints.write_content

    def signalled(self: Checkpoints, *args: Any) -> str:
        if GIVEN["at"] == "write":
            GIVEN["at"] = "never"
            send()
        if GIVEN.get("twice"):
            threading.Event().wait()
        return write(self, *args)

    Checkpoints.write_content = signalled  # type: ignore[method-assign]


def data() -> Any:
    """Return the data: read sample by sample if the run has reading processes, which have no part in it otherwise."""
    if "loader" not in GIVEN.get("options", {}):
        return "digits"
    inputs, labels = (torch.from_numpy(each) for each in load_digits(return_X_y=True))
    return torch.utils.data.Subset(torch.utils.data.TensorDataset(inputs.float(), labels), range(len(labels)))


def main() -> None:
    observe_signals()
    signal_during_write()
    if GIVEN["at"] == "evaluation":
        during_evaluation.append(send)
    options = {"checkpoint_every": 4, "evaluate_every": 9, "log_every": 1, **GIVEN.get("options", {})}
    chimera.train(
        build,
        data(),
        engine=GIVEN["engine"],
        strategy=GIVEN["strategy"],
        workers=2,
        batch_size=16,
        rounds=GIVEN["rounds"],
        optimizer={"name": "adam", "lr": 5e-3},
        callbacks=[AtRound()],
        out=GIVEN["out"],
        resume=True,
        **options,
    )


if __name__ == "__main__":
    main()

"""A network and an optimizer that count the Python calls of a step in their process, and a program that trains with them.

Usage: ``python counted.py FOLDER STRATEGY ENGINE`` trains, and writes one file for each worker and server, and for the driver.
On the engine ``simulated``, the file of the driver has the calls of all of them.

Calls within the functions of `WAITS` do not count: their number depends on how long another process takes.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import torch

FOLDER = "CHIMERA_TEST_COUNTS"
_FOLDER = os.environ.get(FOLDER)
FIRST, LAST = 30, 80  # steps of a process between which calls are counted
WAITS = {"Notifier.await_calls", "Notifier.await_members"}


class CallCounter:
    """Counts the calls of Python functions in this thread."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self._waiting = 0

    def start(self) -> None:
        sys.setprofile(self._count)

    def _count(self, frame: FrameType, event: str, _: Any) -> None:
        if event not in ("call", "return"):
            return
        name = frame.f_code.co_qualname
        if name in WAITS:
            self._waiting += 1 if event == "call" else -1
        elif event == "call" and not self._waiting:
            self.calls[f"{Path(frame.f_code.co_filename).stem}.{name}"] += 1

    def stop(self, folder: str, role: str, steps: int) -> None:
        """Write the number of calls of a step, in all and for each function."""
        sys.setprofile(None)
        functions = {name: count / steps for name, count in self.calls.most_common()}
        found = {"calls": sum(functions.values()), "functions": functions}
        Path(folder, f"{role}-{os.getpid()}.json").write_text(json.dumps(found))


class Marks:
    """Counts between two marks of one place in the code; only the first place in a process that is passed counts."""

    place: str | None = None
    steps, counter = 0, CallCounter()

    @classmethod
    def mark(cls, place: str) -> None:
        cls.place = cls.place or place
        if _FOLDER is None or place != cls.place:
            return
        cls.steps += 1
        if cls.steps == FIRST:
            cls.counter.start()
        elif cls.steps == LAST:
            cls.counter.stop(_FOLDER, cls.place, LAST - FIRST)


class Net(torch.nn.Module):
    """A small network; its first training forward pass of a step is the mark."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Tanh(), torch.nn.Linear(32, 10))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.training:
            Marks.mark("worker")
        return self.layers(inputs)  # type: ignore[no-any-return]


def net() -> Net:
    torch.manual_seed(0)
    return Net()


class ServerAdam(torch.optim.Adam):
    """An optimizer; its step is the mark in processes without a network."""

    def step(self, closure: Any = None) -> Any:
        Marks.mark("server")
        return super().step(closure)


def main(folder: str, strategy: str, engine: str) -> None:
    import chimera

    class Driver(chimera.Callback):
        """Counts in the driver between two evaluations."""

        def __init__(self) -> None:
            self.counter = CallCounter()

        def on_progress(self, progress: chimera.Progress) -> None:
            if progress.rounds == LAST:
                self.counter.start()
            elif progress.rounds == 2 * LAST:
                self.counter.stop(folder, "driver", LAST)

    if engine != "simulated":
        os.environ[FOLDER] = folder
    chimera.train(
        f"{__file__}:net", "digits", strategy=json.loads(strategy), engine=engine, workers=2, batch_size=32,
        rounds=3 * LAST, evaluate_every=LAST, log_every=LAST, optimizer={"name": f"{__file__}:ServerAdam", "lr": 0.001},
        callbacks=[Driver()], progress=False, out=Path(folder) / "run",
    )  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])

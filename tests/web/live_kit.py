"""Folders of runs as a trainer writes them, pages that follow them, and what a browser shows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chimera.web.live.server import Followed, LivePage

EXPERIMENT = """
[data]
name = "digits"
[train]
workers = {workers}
[strategy]
name = "{strategy}"
[engine]
name = "simulated"
"""


def calls_of(round_: int, workers: int = 3) -> list[dict[str, Any]]:
    """Return the rows of a round of 10 ms: gradients of workers, an update of the server, and a tally."""
    at = 0.01 * round_
    rows = [
        {
            "actor": f"worker {rank}",
            "call": "gradient",
            "start_s": at + 0.001 * (rank + 1),
            "end_s": at + 0.005 + 0.0005 * rank,
        }
        for rank in range(workers)
    ]
    rows = [{**row, "bytes_in": 1000, "bytes_out": 1000, "transfer_s": 0.0005, "samples": 16} for row in rows]
    update = {"actor": "server 0", "call": "update", "start_s": at + 0.0075, "end_s": at + 0.008}
    tally = {"actor": "worker 0", "call": "tally", "start_s": at + 0.009, "end_s": at + 0.0091, "bytes_out": 8}
    return [*rows, {**update, "bytes_in": 1000 * workers, "bytes_out": 1000, "transfer_s": 0.0005}, tally]


def measured(round_: int, **more: Any) -> dict[str, Any]:
    """Return a row of metrics."""
    done = {"round": round_, "epoch": round_ / 10, "samples": 48 * round_, "seconds": 0.01 * round_}
    return {
        **done,
        "bytes_up": 3000 * round_,
        "bytes_down": 3000 * round_,
        "train_loss": 2 / round_,
        "accuracy": 1 - 1 / (round_ + 1),
        **more,
    }


def append(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Append rows to a file of JSON lines."""
    with file.open("a") as opened:
        opened.writelines(json.dumps(row) + "\n" for row in rows)


def write_run(folder: Path, *, rounds: int = 5, strategy: str = "parameter-server", workers: int = 3) -> Path:
    """Write the folder of a run that has not finished."""
    folder.mkdir(parents=True)
    (folder / "experiment.toml").write_text(EXPERIMENT.format(workers=workers, strategy=strategy))
    append(folder / "metrics.jsonl", [measured(round_) for round_ in range(1, rounds + 1)])
    append(folder / "trace.jsonl", [row for round_ in range(rounds) for row in calls_of(round_, workers)])
    append(folder / "events.jsonl", [])
    return folder


@contextmanager
def page_of(*folders: Path) -> Iterator[LivePage]:
    """Serve the page of runs."""
    page = LivePage([Followed(folder.name, folder) for folder in folders])
    page.start()
    try:
        yield page
    finally:
        page.close(0)

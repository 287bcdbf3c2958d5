"""Synthetic folders of runs as the trainer writes them, without training or clock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from chimera.core.trace import TraceRow

EXPERIMENT = """
[data]
name = "digits"
[model]
name = "mlp"
hidden = [32, 32]
[train]
epochs = 2
batch_size = 16
[strategy]
name = "parameter-server"
shards = 1
[codec]
name = "identity"
[engine]
name = "{engine}"
workers = {workers}
"""


class RunFolders:
    """A factory of run folders under one root."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def trace_rows(self, workers: int, rounds: int) -> list[TraceRow]:
        """Write a run with a synchronous parameter server: rounds of 10 ms, with 5 ms of computing and 1 ms of transfer."""
        rows = []
        for number in range(rounds):
            at = 0.5 + number * 0.01
            rows += [
                TraceRow(f"worker {rank}", rank, "gradient", at + 0.001, at + 0.006, transfer_s=0.001, samples=16)
                for rank in range(workers)
            ]
            rows.append(TraceRow("server 0", workers, "update", at + 0.008, at + 0.01, transfer_s=0.001))
        return rows

    def metric_rows(self, workers: int, rounds: int, evaluate_every: int = 10) -> list[dict[str, Any]]:
        rows = []
        for number in range(1, rounds + 1):
            samples = number * workers * 16
            row: dict[str, Any] = {
                "round": number,
                "epoch": samples / 1000,
                "samples": samples,
                "seconds": number * 0.01,
            }
            row |= {"bytes_up": number * 4000, "bytes_down": number * 4000, "train_loss": 2.0 / number}
            if number % evaluate_every == 0:
                row |= {"loss": 2.2 / number, "accuracy": 1 - 0.9 / number}
            rows.append(row)
        return rows

    def make(
        self,
        name: str = "a-run",
        *,
        workers: int = 2,
        rounds: int = 40,
        engine: str = "local",
        metrics: list[dict[str, Any]] | None = None,
        trace: list[TraceRow] | None = None,
        events: list[dict[str, Any]] | None = None,
        finished: bool = True,
        **summary: Any,
    ) -> Path:
        folder = self.root / name
        folder.mkdir(parents=True)
        metrics = self.metric_rows(workers, rounds) if metrics is None else metrics
        trace = self.trace_rows(workers, rounds) if trace is None else trace
        (folder / "experiment.toml").write_text(EXPERIMENT.format(engine=engine, workers=workers), encoding="utf-8")
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics), encoding="utf-8")
        (folder / "trace.jsonl").write_bytes(msgspec.json.Encoder().encode_lines(trace))
        if events is not None:
            (folder / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in events), encoding="utf-8")
        (folder / "environment.json").write_text(json.dumps({"seed": 7, "machine": {"cores": 8}}), encoding="utf-8")
        if finished:
            last = metrics[-1] if metrics else {}
            total: dict[str, Any] = {
                "strategy": "parameter-server",
                "codec": "identity",
                "engine": engine,
                "workers": workers,
            }
            total |= {
                "rounds": rounds,
                "epochs": 1.28,
                "samples": last.get("samples", 0),
                "seconds": last.get("seconds", 0.0),
            }
            total |= {"samples_per_second": 3210.0, "bytes_up": 160_000, "bytes_down": 160_000, "lost_workers": 0}
            total |= {"metrics": {"loss": 0.0551, "accuracy": 0.9775}, "stopped_by": "epochs", "run_dir": str(folder)}
            (folder / "summary.json").write_text(json.dumps(total | summary), encoding="utf-8")
        return folder


@pytest.fixture
def runs(tmp_path: Path) -> RunFolders:
    return RunFolders(tmp_path)

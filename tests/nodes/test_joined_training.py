"""Rounds on nodes: workers report losses and state in the requests of their work, with the figures of separate requests."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chimera
from chimera.engines.http import HttpEngine
from chimera.engines.http.node import Node
from nodes.test_training import TEST, TRAIN, network, two_nodes


def trained(urls: list[str], out: Path, **options: Any) -> tuple[Any, Counter[str]]:
    """Train; return the run, and how often each request was sent to the actors."""
    paths: list[str] = []
    with HttpEngine(nodes=urls, on_answer=lambda url, _: paths.append(url.rpartition("/")[2])) as engine:
        run = chimera.train(
            network, (TRAIN, TEST), engine=engine, workers=2, batch_size=20, rounds=4, out=out,
            optimizer={"name": "sgd", "lr": 0.1, "momentum": 0.9}, log_every=1, checkpoint_every=2, **options,
        )  # fmt: skip
    return run, Counter(paths)


def figures(out: Path) -> list[dict[str, Any]]:
    """Return the rows of metrics without times."""
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if not key.startswith("second")} for row in rows]


@pytest.mark.parametrize(
    "strategy", [{"name": "fed-avg", "local_steps": 2}, {"name": "parameter-server"}], ids=lambda given: given["name"]
)
def test_joined_requests_give_the_figures_of_separate_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: dict[str, Any]
) -> None:
    with two_nodes(tmp_path) as urls:
        joined, requests = trained(urls, tmp_path / "joined", strategy=strategy, codec={"name": "top-k", "ratio": 0.5})
        monkeypatch.setattr(Node, "takes_joined", lambda _: False)  # as nodes of earlier versions report
        single, before = trained(urls, tmp_path / "single", strategy=strategy, codec={"name": "top-k", "ratio": 0.5})
    work = "delta" if strategy["name"] == "fed-avg" else "gradient"
    # Two workers, four rounds. On a busy machine a request may leave before its second call is issued.
    assert requests[work] + requests[f"{work},tally"] == 8
    assert requests[f"{work},tally"] >= 1
    assert requests["local_state,step"] >= 1
    assert {name for name in requests if "," in name} == {f"{work},tally", "local_state,step"}  # with small answers
    assert before[work] == before["tally"] == 8
    assert np.array_equal(joined.trained.parameters(), single.trained.parameters())
    assert figures(tmp_path / "joined") == figures(tmp_path / "single")
    assert all(row["train_loss"] > 0 for row in figures(tmp_path / "joined"))


def test_private_workers_report_sizes_in_the_request_of_the_update(tmp_path: Path) -> None:
    with two_nodes(tmp_path) as urls:
        run, requests = trained(
            urls, tmp_path / "run", strategy={"name": "fed-avg", "local_steps": 2}, privacy={"clip": 1.0, "noise": 1.0}
        )
    assert requests["delta"] + requests["delta,tally"] == 8
    assert requests["delta,tally"] >= 1
    assert run.metrics["epsilon"] > 0

"""A minute of kills: a random worker every second, a server twice, and on Ray one of two nodes."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

import chimera

SECONDS = 60
pytestmark = pytest.mark.slow


def deaths(servers: bool) -> list[tuple[float, str]]:
    faults = [(float(second), "kill any worker") for second in range(1, SECONDS)]
    return faults + ([(20.5, "kill server 0"), (40.5, "kill server 1")] if servers else [])


class NodeKiller(chimera.Callback):
    """Takes a node of the cluster away, as if its plug were pulled, at half-time."""

    def __init__(self, cluster: Any, node: Any) -> None:
        self.cluster, self.node = cluster, node

    def on_progress(self, progress: chimera.Progress) -> None:
        if progress.seconds > SECONDS / 2 and self.node is not None:
            self.cluster.remove_node(self.node, allow_graceful=False)
            self.node = None


@contextmanager
def nothing_left() -> Iterator[None]:
    """Hold that no process and no segment of shared memory is left that was not there before."""

    def shared() -> set[str]:
        names = {path.name for path in Path("/dev/shm").iterdir()}
        return {name for name in names if "chimera" in name or "plasma" in name}

    before, segments = set(psutil.Process().children(recursive=True)), shared()
    yield
    children = set(psutil.Process().children(recursive=True)) - before
    _, alive = psutil.wait_procs(list(children), timeout=10)
    assert [process.name() for process in alive] == []
    assert shared() - segments == set()


def survived(folder: Path, servers: bool, **options: Any) -> Counter[str]:
    run = chimera.train(
        "mlp",
        "digits",
        batch_size=32,
        optimizer={"name": "sgd", "lr": 0.05, "momentum": 0.9},
        evaluate_every=1000,
        snapshot_every=50,
        max_restarts=1000,
        faults=deaths(servers),
        out=folder,
        **options,
    )
    counts = Counter(event.event for event in run.events)
    figures = {**counts, "rounds": run.cost.rounds, "lost_rounds": run.cost.lost_rounds, "goodput": run.cost.goodput}
    print(json.dumps(figures))  # noqa: T201 - shown with -s
    assert counts["worker dropped"] == 0
    assert run.metrics["accuracy"] > 0.95
    return counts


@pytest.mark.parametrize("strategy", [{"name": "parameter-server", "shards": 2}, "all-reduce"], ids=str)
def test_local_training_survives_a_minute_of_killed_processes(strategy: Any, tmp_path: Path) -> None:
    with nothing_left():
        servers = strategy != "all-reduce"
        options = {"strategy": strategy, "engine": "local", "workers": 4, "max_seconds": SECONDS + 2}
        counts = survived(tmp_path / "run", servers, **options)
    assert counts["worker lost"] == SECONDS - 1
    assert counts["server lost"] == counts["server respawned"] == 2 * servers


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray: pip install 'chimera-dml[ray]'")
def test_ray_training_survives_a_minute_of_killed_actors_and_a_killed_node(tmp_path: Path) -> None:
    from ray.cluster_utils import Cluster

    from chimera.engines.ray.session import HEALTH_CHECKS

    node = {"num_cpus": 8, "object_store_memory": 300 << 20}
    with nothing_left():
        cluster = Cluster(
            initialize_head=True,
            head_node_args={**node, "include_dashboard": False, "_system_config": dict(HEALTH_CHECKS)},
        )
        try:
            second = cluster.add_node(**node)
            engine = {"name": "ray", "address": cluster.address, "placement": "spread"}
            killer = NodeKiller(cluster, second)
            strategy = {"name": "parameter-server", "shards": 2}
            # A process of Ray that imports torch costs two seconds of a core: two cores hardly do more meanwhile.
            options = {"strategy": strategy, "engine": engine, "workers": 6, "max_seconds": 3 * SECONDS}
            counts = survived(tmp_path / "run", servers=True, **options, callbacks=[killer])
            assert killer.node is None
            assert counts["worker lost"] > 6  # workers that have not started cannot be killed
            assert counts["server lost"] >= 2  # and one more, if it was on the node
        finally:
            cluster.shutdown()

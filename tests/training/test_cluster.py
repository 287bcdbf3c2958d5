"""Tests of the order of results, and of resharding when workers are lost or join."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import chimera
from chimera.core.call import work
from chimera.core.errors import ActorLost
from chimera.core.parameters import Layout
from chimera.data.order import GlobalOrder, Order
from chimera.data.provider import DataProvider
from chimera.training.cluster.cluster import TrainingCluster
from chimera.training.cluster.heartbeat import HeartbeatMonitor
from chimera.training.cluster.sharding import Sharding
from chimera.training.fault_tolerance.recovery import Recovery
from chimera.training.fault_tolerance.settings import FaultTolerance
from chimera.training.optimizers.optimizer import OptimizerSettings
from chimera.training.server.parameter_shard import ParameterShard


class Runner:
    def run(self, samples: int) -> tuple[int, int]:
        work(samples=samples)
        return samples, 0


class Runners:
    """Makes runners for workers, and no servers."""

    addressed = by_rows = private = False

    def __init__(self, engine: chimera.Engine) -> None:
        self.engine = engine

    def reserve_workers(self, count: int, timeout_s: float | None = None) -> None:
        pass

    def worker(self, rank: int, order: Order) -> Any:
        return self.engine.spawn(Runner, name=f"{rank}")

    def servers(self, shards: int) -> list[Any]:
        raise NotImplementedError

    def server(self, index: int, shards: int) -> Any:
        raise NotImplementedError


@dataclass(frozen=True)
class Dealt(DataProvider):
    samples: int
    batch_size: int

    def orders(self, world_size: int, *, since: int = 0, begin: int = 0) -> list[Order]:
        places = {"world_size": world_size, "batch_size": self.batch_size, "since": since, "begin": begin}
        return [GlobalOrder(self.samples, rank=rank, seed=0, **places) for rank in range(world_size)]


class WithServers(Runners):
    """Makes servers too."""

    def servers(self, shards: int) -> list[Any]:
        return [self.server(index, shards) for index in range(shards)]

    def server(self, index: int, shards: int) -> Any:
        weights = np.zeros(4, np.float32)
        layout, optimizer = Layout(("w",), ((4,),)), OptimizerSettings("sgd", {"lr": 0.1})
        return self.engine.spawn(ParameterShard, weights, layout, optimizer=optimizer, name=f"server {index}")


def dealing(world_size: int, samples: int = 100, batch_size: int = 1) -> Sharding:
    return Sharding(Dealt(samples, batch_size), world_size, lambda world_size: world_size * batch_size)


def run(lengths: Sequence[int], crash: dict[str, float] | None = None) -> list[str]:
    """Start runners together; return their names in the order of their results."""
    compute = {"seconds_per_sample": 1.0, "seconds_per_call": 0.0}
    network = {"latency_s": 0.0, "bandwidth_bytes_s": math.inf}  # or the order of asking would make a difference
    with chimera.engine("simulated", compute=compute, network=network, availability={"crash": crash or {}}) as engine:
        cluster = TrainingCluster(engine, Runners(engine), dealing(len(lengths)))
        pairs = list(zip(cluster.workers, lengths, strict=True))
        pending = {worker.name: worker.run(samples, returns=2) for worker, samples in reversed(pairs)}
        order = []
        while pending:
            order.append(cluster.first(pending))
            del pending[order[-1]]
            assert set(pending) >= {worker.name for worker in cluster.workers} - {w.name for w in cluster.on_time()}
        assert cluster.on_time() == cluster.workers
    return order


def test_results_come_in_order_of_completion_and_ties_by_rank() -> None:
    assert run([30, 10, 20]) == ["1", "2", "0"]
    assert run([10, 10, 10]) == ["0", "1", "2"]


@pytest.mark.parametrize(("quorum", "enough"), [(0.25, 1), (0.5, 2), (0.67, 3), (0.99, 3)])
def test_a_quorum_is_rounded_up(quorum: float, enough: int) -> None:
    """Half of three workers are two: fewer than the fraction that was asked for are no quorum."""
    with chimera.engine("simulated", compute={"seconds_per_sample": 1.0}) as engine:
        cluster = TrainingCluster(engine, Runners(engine), dealing(3))
        lengths = iter([30, 10, 20])
        answers = cluster.gather(lambda worker: worker.run(next(lengths)), quorum=quorum)
        assert len(answers) == enough


def test_a_loss_is_raised_before_later_results() -> None:
    with pytest.raises(ActorLost, match="1 died"):
        run([30, 10, 20], crash={"1": 5.0})


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 7)), min_size=1, max_size=6), st.integers(1, 3))
def test_resharding_repeats_no_sample_within_an_epoch(phases: list[tuple[int, int]], batch_size: int) -> None:
    samples, round_ = 30, 0
    data = dealing(phases[0][0], samples, batch_size)
    read: list[int] = []
    for world_size, rounds in phases:
        data.reshard(world_size, round_)
        again = dealing(1, samples, batch_size)
        again.restore(data.state())
        for step in range(round_, round_ + rounds):
            batches = [order.batch(step) for order in data.orders]
            assert np.array_equal(batches, [order.batch(step) for order in again.orders])
            read += np.concatenate(batches).tolist()
        round_ += rounds
    for begin in range(0, len(read), samples):
        epoch = read[begin : begin + samples]
        assert len(set(epoch)) == len(epoch)


def test_idle_workers_come_first_and_stale_results_are_ignored() -> None:
    with chimera.engine("simulated", compute={"seconds_per_sample": 1.0}) as engine:
        cluster = TrainingCluster(engine, Runners(engine), dealing(3))
        pending = {
            worker.name: worker.run(samples) for worker, samples in zip(cluster.workers, [30, 20, 10], strict=True)
        }
        engine.get(list(pending.values()))
        assert cluster.first(pending) == "2"
        pending["2"] = cluster.workers[2].run(1)
        assert cluster.first(pending) == "1"
        pending = {
            worker.name: worker.run(samples) for worker, samples in zip(cluster.workers, [30, 20, 10], strict=True)
        }
        assert cluster.first(pending) == "2"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rounds", [(3, 3), (3, 4)])
def test_a_run_goes_back_if_servers_completed_different_rounds_when_a_worker_died(rounds: tuple[int, int]) -> None:
    with chimera.engine("local") as engine:
        cluster = TrainingCluster(engine, WithServers(engine), dealing(2))
        servers = cluster.servers(2)
        group = cluster.group_with_servers()
        engine.get([server.serve(0, group, (), first=first) for server, first in zip(servers, rounds, strict=True)])
        recovery = Recovery(engine, cluster, HeartbeatMonitor(engine), FaultTolerance(on_worker_loss="drop"))
        recovery.go_back = lambda: "the snapshot"
        engine.kill(cluster.workers[0])
        events = [event for event, _, _ in recovery.recover(ActorLost("0 died"))]
    assert events == ["0 lost", *(["went back"] if rounds == (3, 4) else [])]

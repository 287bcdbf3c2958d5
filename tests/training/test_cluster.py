"""Which worker was first."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

import chimera
from chimera.core.call import work
from chimera.core.errors import ActorLost
from chimera.training.cluster import TrainingCluster


class Runner:
    def run(self, samples: int) -> tuple[int, int]:
        work(samples=samples)
        return samples, 0


def run(lengths: Sequence[int], crash: dict[str, float] | None = None) -> list[str]:
    """Let runners start together; return their names in the order in which they came in."""
    compute = {"seconds_per_sample": 1.0, "seconds_per_call": 0.0}
    network = {"latency_s": 0.0, "bandwidth_bytes_s": math.inf}  # or the order of asking would make a difference
    with chimera.engine("simulated", compute=compute, network=network, availability={"crash": crash or {}}) as engine:
        cluster = TrainingCluster(engine, lambda i: engine.spawn(Runner, name=f"{i}"), len(lengths), lambda _: [])
        pairs = list(zip(cluster.workers, lengths, strict=True))
        pending = {worker.name: worker.run(samples, returns=2) for worker, samples in reversed(pairs)}
        order = []
        while pending:
            order.append(cluster.first(pending))
            del pending[order[-1]]
            assert set(pending) >= {worker.name for worker in cluster.workers} - {w.name for w in cluster.on_time()}
        assert cluster.on_time() == cluster.workers
    return order


def test_the_first_to_answer_is_first_and_ties_go_by_rank() -> None:
    assert run([30, 10, 20]) == ["1", "2", "0"]
    assert run([10, 10, 10]) == ["0", "1", "2"]


def test_a_death_is_told_before_anybody_else_wins() -> None:
    with pytest.raises(ActorLost, match="1 died"):
        run([30, 10, 20], crash={"1": 5.0})


def test_who_has_answered_comes_before_who_is_asked_now_and_old_answers_count_for_nothing() -> None:
    with chimera.engine("simulated", compute={"seconds_per_sample": 1.0}) as engine:
        cluster = TrainingCluster(engine, lambda rank: engine.spawn(Runner, name=str(rank)), 3, lambda _: [])
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

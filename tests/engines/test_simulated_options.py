"""The models of the simulated engine as options: from tables, from dataclasses, and invalid values."""

from __future__ import annotations

import importlib
import itertools
import re
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_info, threadpool_limits

from chimera.core.engine import ENGINES
from chimera.core.errors import ConfigurationError
from chimera.engines.simulated import Availability, Compute, Network, NodeNetwork, Simulated
from chimera.engines.simulated.models.link import Link

TABLE = """
seed = 3
[network]
latency_s = 0.01
bandwidth_bytes_s = 1e6
nodes = {"worker 2" = {bandwidth_bytes_s = 1e5}, "server 0" = {latency_s = 0}}
[compute]
seconds_per_call = 1
slow = {"worker 3" = 4}
[availability]
crash = {"worker 2" = 3.5}
"""


def test_a_toml_table_and_the_dataclasses_mean_the_same() -> None:
    class Echo:
        def echo(self, value: object) -> object:
            return value

    from_table = ENGINES.create("simulated", tomllib.loads(TABLE))
    from_classes = Simulated(
        seed=3,
        network=Network(
            latency_s=0.01,
            bandwidth_bytes_s=1e6,
            nodes={"worker 2": NodeNetwork(bandwidth_bytes_s=1e5), "server 0": NodeNetwork(latency_s=0.0)},
        ),
        compute=Compute(seconds_per_call=1.0, slow={"worker 3": 4.0}),
        availability=Availability(crash={"worker 2": 3.5}),
    )
    times = []
    for engine in (from_table, from_classes):
        for name in ("worker 0", "worker 2", "worker 3", "server 0"):
            engine.get(engine.spawn(Echo, name=name).echo(b"x" * 1000))
        times.append((engine.now(), [(row.start_s, row.end_s) for row in engine.trace()]))
    assert times[0] == times[1]


def test_a_fixed_factor_multiplies_the_drawn_one() -> None:
    plain, slow = Compute(spread=0.7), Compute(spread=0.7, slow={"worker 1": 4.0})
    drawn = [plain.actor_factor(seed, "worker 1") for seed in range(5)]
    assert [slow.actor_factor(seed, "worker 1") for seed in range(5)] == pytest.approx([4 * each for each in drawn])
    assert slow.actor_factor(0, "worker 2") == plain.actor_factor(0, "worker 2") != 1


def test_a_mixture_of_table_and_dataclass_is_understood() -> None:
    Simulated(network={"nodes": {"worker 0": NodeNetwork(latency_s=1.0)}})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"network": {"latency": 1}},
            "network has no key 'latency'; its keys: latency_s, bandwidth_bytes_s, nodes, topology",
        ),
        ({"network": {"nodes": {"worker 2": {"speed": 1}}}}, "nodes 'worker 2' has no key 'speed'"),
        ({"network": {"latency_s": "fast"}}, "network: Expected float, got str, for latency_s"),
        ({"network": {"latency_s": -1}}, "latency_s = -1.0 must be zero or more"),
        ({"network": {"bandwidth_bytes_s": 0}}, "bandwidth_bytes_s = 0.0 must be above zero"),
        ({"network": {"nodes": {"worker 2": {"bandwidth_bytes_s": 0}}}}, "bandwidth_bytes_s = 0.0 must be above zero"),
        ({"network": 5}, "network: 5 cannot be used"),
        ({"compute": {"per_call": 1}}, "compute has no key 'per_call'"),
        ({"compute": {"spread": float("nan")}}, "spread = nan must be zero or more"),
        ({"compute": {"slow": {"worker 1": 0}}}, "slow, 'worker 1' = 0.0 must be above zero"),
        ({"availability": {"crash": {"worker 1": -2}}}, "crash, 'worker 1' = -2.0 must be zero or more"),
        ({"availability": {"crashes": {}}}, "availability has no key 'crashes'; its keys: join, leave, crash, path"),
        ({"speed": 1}, "has no option 'speed'"),
        ({"seed": "x"}, "option 'seed': 'x' cannot be used"),
    ],
)
def test_what_cannot_be_used_is_one_line_that_names_it(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(said)) as caught:
        ENGINES.create("simulated", options)
    assert "\n" not in str(caught.value)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), max_size=40))
def test_a_link_carries_one_transfer_at_a_time_each_at_the_first_moment_it_is_free(
    asked: list[tuple[int, int]],
) -> None:
    link, busy = Link(), set[int]()
    for earliest_s, duration_s in asked:
        begin_s = int(link.reserve(earliest_s, duration_s))
        taken = set(range(begin_s, begin_s + duration_s))
        assert begin_s >= earliest_s
        assert not taken & busy
        assert all(set(range(t, t + duration_s)) & busy for t in range(earliest_s, begin_s))
        busy |= taken
    intervals = list(zip(link.times_s[::2], link.times_s[1::2], strict=True))
    assert sum(end - begin for begin, end in intervals) == len(busy)
    assert all(end < begin for (_, end), (begin, _) in itertools.pairwise(intervals))  # neighbours are merged


class Threads:
    def count(self) -> set[int]:
        return {pool["num_threads"] for pool in threadpool_info()}


def test_the_arithmetic_has_one_thread_while_the_engine_is_open_whatever_the_machine() -> None:
    importlib.import_module("torch")  # has a pool of its own
    with threadpool_limits(2):
        with Simulated() as engine:
            assert engine.get(engine.spawn(Threads).count()) == {1}
        assert Threads().count() == {2}


def test_a_transfer_takes_the_first_gap_that_holds_it() -> None:
    link = Link()
    assert [link.reserve(earliest_s, 2.0) for earliest_s in (0.0, 5.0, 12.0)] == [0.0, 5.0, 12.0]
    assert link.reserve(1.0, 4.0) == 7.0  # from 2 to 5 is too short for it
    assert link.reserve(1.0, 3.0) == 2.0
    assert link.reserve(0.0, 1.0) == 11.0
    assert link.reserve(0.0, 1.0) == 14.0

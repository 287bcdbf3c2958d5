from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera.core.errors import ConfigurationError, DataError
from chimera.data.assignment import orders
from chimera.data.dataset import Dataset
from chimera.data.order import GlobalOrder, ShardOrder
from chimera.data.partition import PARTITIONERS, Contiguous, Iid, Replicate

sizes = st.integers(1, 40)
steps = st.integers(0, 60)


def global_orders(n, world_size, batch_size, seed=0):
    return [
        GlobalOrder(n, world_size=world_size, rank=rank, batch_size=batch_size, seed=seed) for rank in range(world_size)
    ]


@given(n=sizes, world_size=st.integers(1, 5), batch_size=st.integers(1, 12), step=steps, seed=st.integers(0, 9))
def test_n_workers_read_what_one_worker_with_a_batch_n_times_as_large_reads(n, world_size, batch_size, step, seed):
    together = np.concatenate([order.batch(step) for order in global_orders(n, world_size, batch_size, seed)])
    (alone,) = global_orders(n, 1, world_size * batch_size, seed)
    assert np.array_equal(together, alone.batch(step))


@given(n=sizes, before=st.integers(1, 4), after=st.integers(1, 4), batch_size=st.integers(1, 7), step=steps)
def test_another_number_of_workers_continues_the_same_stream(n, before, after, batch_size, step):
    """The stream is that of one worker with batches of 1. Each earlier worker has read ``step`` batches."""
    begin = step * before * batch_size
    (stream,) = global_orders(n, 1, 1)
    for rank in range(after):
        order = GlobalOrder(n, world_size=after, rank=rank, batch_size=batch_size, seed=0, since=step, begin=begin)
        first = begin + rank * batch_size
        assert order.batch(step).tolist() == [int(stream.batch(first + i)[0]) for i in range(batch_size)]


@given(n=sizes, world_size=st.integers(1, 5), batch_size=st.integers(1, 3))
def test_each_row_belongs_to_one_worker(n, world_size, batch_size):
    own = np.concatenate([order.own() for order in global_orders(n, world_size, batch_size)])
    assert sorted(own.tolist()) == list(range(n))


@given(n=sizes, batch_size=st.integers(1, 50), seed=st.integers(0, 9))
def test_the_global_stream_is_a_sequence_of_permutations(n, batch_size, seed):
    (order,) = global_orders(n, 1, batch_size, seed)
    count = -(-3 * n // batch_size)
    stream = np.concatenate([order.batch(step) for step in range(count)])
    for epoch in range(3):
        expected = np.random.default_rng([seed, epoch]).permutation(n)
        assert np.array_equal(stream[epoch * n : (epoch + 1) * n], expected)


@given(
    indices=st.lists(st.integers(0, 1000), min_size=1, max_size=30, unique=True),
    batch_size=st.integers(1, 70),
    rank=st.integers(0, 3),
)
def test_each_sample_of_a_shard_is_read_once_per_epoch(indices, batch_size, rank):
    order = ShardOrder(np.array(indices, np.int32), batch_size=batch_size, seed=1, rank=rank)
    batches = [order.batch(step) for step in range(-(-3 * len(indices) // batch_size))]
    assert all(batch.shape == (batch_size,) and batch.dtype == np.int64 for batch in batches)
    stream = np.concatenate(batches)
    for epoch in range(3):
        assert sorted(stream[epoch * len(indices) :][: len(indices)].tolist()) == sorted(indices)


@pytest.mark.parametrize("rank", [0, 3])
def test_each_epoch_of_each_shard_has_its_own_order(rank):
    """Two of the 50! permutations are never equal by chance."""
    orders_ = [ShardOrder(np.arange(50), batch_size=50, seed=1, rank=each) for each in (rank, rank + 1)]
    seen = {tuple(order.batch(epoch).tolist()) for order in orders_ for epoch in range(4)}
    assert len(seen) == 8


@given(n=st.integers(5, 40), batch_size=st.integers(1, 50), at=st.lists(steps, min_size=1, max_size=10))
def test_a_batch_depends_only_on_the_step(n, batch_size, at):
    for make in (
        lambda: global_orders(n, 2, batch_size)[1],
        lambda: ShardOrder(np.arange(n), batch_size=batch_size, seed=3, rank=1),
    ):
        order = make()
        for step in at:
            batch = order.batch(step).copy()
            assert len(batch) == batch_size
            assert np.array_equal(batch, make().batch(step))
            assert np.array_equal(batch, pickle.loads(pickle.dumps(order)).batch(step))


def test_a_pickled_order_has_no_permutation():
    shard = ShardOrder(np.arange(10_000, dtype=np.int32), batch_size=10, seed=0, rank=0)
    (whole,) = global_orders(10_000, 1, 10)
    shard.batch(0), whole.batch(0)
    assert len(pickle.dumps(shard)) < 41_000
    assert len(pickle.dumps(whole)) < 500


def regression(n: int) -> Dataset:
    return Dataset(np.zeros((n, 1), np.float32), np.zeros(n, np.float32))


def test_iid_uses_a_global_order_and_other_partitions_use_shards():
    data = Dataset(np.zeros((120, 1), np.float32), np.arange(120) % 3, groups=np.arange(120) % 12)
    for entry in PARTITIONERS.entries():
        found = orders(entry.factory(), data, 4, 5, seed=2)
        assert {type(order) for order in found} == {GlobalOrder if entry.name == "iid" else ShardOrder}
        assert [order.steps_per_epoch for order in found] == [6.0] * 4
        read = np.concatenate([order.batch(step) for order in found for step in range(6)])
        if entry.name in (
            "iid",
            "contiguous",
            "by-label",
            "dirichlet",
            "by-group",
        ):  # parts of equal size: the samples of one epoch
            assert sorted(read.tolist()) == list(range(120))


def test_replicas_share_memory_and_read_in_different_orders():
    one, other = orders(Replicate(), regression(50), 2, 50, seed=0)
    assert isinstance(one, ShardOrder)
    assert isinstance(other, ShardOrder)
    assert one.indices is other.indices
    assert not np.array_equal(one.batch(0), other.batch(0))


def test_a_function_is_a_partitioner():
    def evens_and_odds(labels, world_size, rng):
        return [np.arange(rank, len(labels), world_size) for rank in range(world_size)]

    even, odd = orders(evens_and_odds, regression(10), 2, 5, seed=0)
    assert sorted(even.batch(0).tolist()) == [0, 2, 4, 6, 8]
    assert sorted(odd.batch(1).tolist()) == [1, 3, 5, 7, 9]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: global_orders(10, 1, 0), "batch_size is 0"),
        (lambda: global_orders(10, 1, 1, seed=-1), "seed is -1"),
        (lambda: GlobalOrder(10, world_size=2, rank=2, batch_size=1, seed=0), "rank 2 is not one of 2"),
        (lambda: ShardOrder(np.arange(0), batch_size=1, seed=0, rank=0), "no sample"),
        (lambda: orders(Iid(), regression(3), 2, -4, seed=0), "batch_size is -4"),
    ],
)
def test_invalid_numbers_are_errors(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_more_workers_than_samples_is_an_error_for_global_orders_too():
    for partitioner in (Iid(), Contiguous()):
        with pytest.raises(DataError, match="each of 4 workers, and has 3"):
            orders(partitioner, regression(3), 4, 1, seed=0)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([np.arange(10)], "1 parts for 2 workers"),
        ([np.arange(10), np.array([10])], "worker 1 samples from 10 to 10: 0 to 9 are allowed"),
        ([np.array([-1, 3]), np.arange(4)], "worker 0 samples from -1 to 3"),
        ([np.arange(10), np.arange(0)], r"worker 1 an array of int64, shape \(0,\)"),
        ([np.arange(10), []], r"worker 1 an array of float64, shape \(0,\)"),
        ([np.arange(10) < 5, np.arange(10) >= 5], "worker 0 an array of bool"),
        ([np.arange(10), np.arange(3) / 2], "worker 1 an array of float64"),
        ([np.arange(10), np.ones((2, 2), int)], r"worker 1 an array of int64, shape \(2, 2\)"),
    ],
)
def test_a_partitioner_with_invalid_results_is_rejected(parts, message):
    with pytest.raises(ConfigurationError, match=message):
        orders(lambda *_: parts, Dataset.of((np.zeros((10, 1)), np.zeros(10, int))), 2, 4, 0)


def test_a_partitioner_may_return_lists():
    one, two = orders(lambda *_: [[0, 2], [1, 3]], Dataset.of((np.zeros((4, 1)), np.zeros(4, int))), 2, 2, 0)
    assert (sorted(one.batch(0)), sorted(two.batch(0))) == ([0, 2], [1, 3])

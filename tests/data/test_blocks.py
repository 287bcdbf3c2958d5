"""The order of samples in blocks: permutations, few blocks at a time, the same at any step."""

from __future__ import annotations

import pickle
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chimera.data.blocks import Blocks
from chimera.data.order import GlobalOrder, ShardOrder

sizes = st.lists(st.integers(1, 9), min_size=1, max_size=8)


@settings(max_examples=30)
@given(sizes=sizes, together=st.integers(1, 9), seed=st.integers(0, 99), count=st.integers(1, 12))
def test_each_epoch_is_a_permutation_and_batches_are_slices_of_one_stream(
    sizes: list[int], together: int, seed: int, count: int
) -> None:
    blocks = Blocks(np.cumsum([0, *sizes]), together)
    samples = sum(sizes)
    stream = blocks.batch((seed,), 0, 3 * samples + 12)
    for epoch in np.split(stream[: 3 * samples], 3):
        assert sorted(epoch.tolist()) == list(range(samples))
        held = np.searchsorted(blocks.bounds, epoch, "right").tolist()
        for place, block in enumerate(held):  # from the first to the last sample of a block, few other blocks are read
            assert len(set(held[held.index(block) : place + 1])) <= together
    for begin in range(0, 2 * samples, count):
        assert np.array_equal(blocks.batch((seed,), begin, count), stream[begin : begin + count])


def test_epochs_and_seeds_differ() -> None:
    blocks = Blocks(np.arange(0, 101, 10), 3)
    first, second = np.split(blocks.batch((1,), 0, 200), 2)
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, blocks.batch((2,), 0, 100))
    assert np.abs(np.diff(first)).mean() > 3  # rows of a window are mixed


def test_n_workers_read_in_each_step_what_one_worker_reads() -> None:
    blocks = Blocks(np.arange(0, 41, 8), 2)
    many = [GlobalOrder(40, world_size=3, rank=rank, batch_size=4, seed=5, grouping=blocks) for rank in range(3)]
    one = GlobalOrder(40, world_size=1, rank=0, batch_size=12, seed=5, grouping=blocks)
    for step in range(8):
        assert np.array_equal(np.concatenate([order.batch(step) for order in many]), one.batch(step))


def test_a_worker_reads_its_own_samples_in_blocks() -> None:
    own = np.array([1, 2, 9, 12, 13, 30, 31, 39], np.int32)
    order = ShardOrder(own, batch_size=4, seed=1, rank=0, grouping=Blocks(np.arange(0, 41, 8), 1).of(own))
    sent = pickle.loads(pickle.dumps(order))
    for epoch in range(3):
        read = np.concatenate([order.batch(2 * epoch), order.batch(2 * epoch + 1)])
        assert sorted(read.tolist()) == own.tolist()
        assert len(list(groupby(read // 8))) == 4  # each block in one piece
        assert np.array_equal(sent.batch(2 * epoch), order.batch(2 * epoch))


@pytest.mark.parametrize("together", [1, 5])
def test_equal_blocks_share_what_a_process_has_shuffled(together: int) -> None:
    one, other = (Blocks(np.arange(0, 41, 8), together) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert one != Blocks(np.arange(0, 41, 8), together + 1)

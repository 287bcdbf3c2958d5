"""The order of samples of different lengths: permutations, similar lengths together, the same at any step."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import chimera
from chimera.core.errors import DataError
from chimera.data.assignment import orders
from chimera.data.length_groups import LengthGroups
from chimera.data.order import GlobalOrder
from chimera.data.partition import PARTITIONERS


class Texts:
    """Samples whose length is given: sample i has ``lengths[i]`` times the number i."""

    def __init__(self, lengths: Any) -> None:
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, row: int) -> list[int]:
        return [row] * int(self.lengths[row])


def padded(samples: list[list[int]]) -> np.ndarray:
    longest = max(map(len, samples))
    return np.array([[*sample, *[-1] * (longest - len(sample))] for sample in samples], np.int64)


def texts(count: int, group: int) -> chimera.SampleDataset:
    lengths = np.random.default_rng(0).integers(1, 200, count)
    return chimera.SampleDataset(Texts(lengths), collate=padded, lengths=lengths, length_group=group)


@settings(max_examples=30)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=40),
    size=st.integers(1, 9),
    seed=st.integers(0, 99),
    count=st.integers(1, 12),
)
def test_each_epoch_is_a_permutation_and_batches_are_slices_of_one_stream(
    lengths: list[int], size: int, seed: int, count: int
) -> None:
    groups = LengthGroups(np.array(lengths), size)
    stream = groups.batch((seed,), 0, 3 * len(lengths) + 12)
    for epoch in np.split(stream[: 3 * len(lengths)], 3):
        assert sorted(epoch.tolist()) == list(range(len(lengths)))
    for begin in range(0, 2 * len(lengths), count):
        assert np.array_equal(groups.batch((seed,), begin, count), stream[begin : begin + count])


def test_n_workers_read_in_each_step_what_one_worker_reads() -> None:
    groups = LengthGroups(np.random.default_rng(0).integers(1, 99, 45), 12)
    many = [GlobalOrder(45, world_size=3, rank=rank, batch_size=4, seed=5, grouping=groups) for rank in range(3)]
    one = GlobalOrder(45, world_size=1, rank=0, batch_size=12, seed=5, grouping=groups)
    for step in range(9):
        assert np.array_equal(np.concatenate([order.batch(step) for order in many]), one.batch(step))


@pytest.mark.parametrize(("partition", "group"), [("iid", 32), ("contiguous", 8)])
def test_little_is_padded_and_the_order_is_not_by_length(partition: str, group: int) -> None:
    """Each of four workers reads 25 batches of 8 samples. Of random batches, 0.43 is padding."""
    data = texts(800, group)
    for order in orders(PARTITIONERS.create(partition), data, 4, 8, 1):
        read = [pickle.loads(pickle.dumps(order)).batch(step) for step in range(25)]
        batches = [data.take(rows) for rows in read]
        assert np.mean([(batch == -1).mean() for batch in batches]) < 0.1
        widths = [batch.shape[1] for batch in batches]
        assert abs(np.corrcoef(widths, range(25))[0, 1]) < 0.5


def test_groups_differ_from_epoch_to_epoch() -> None:
    first, second = np.split(LengthGroups(np.full(640, 7), 8).batch((1,), 0, 1280), 2)
    members = [{frozenset(group) for group in epoch.reshape(-1, 8).tolist()} for epoch in (first, second)]
    assert not members[0] & members[1]


def test_a_run_reads_each_sample_once_an_epoch() -> None:
    """The parts of a split keep the lengths of their samples."""
    data = texts(60, 4)
    part = data.subset(np.arange(10, 50))
    assert part.grouping is not None
    rows = part.grouping.batch((0,), 0, 40)
    read = {int(value) for row in rows for value in part.take(np.array([row]))[0]}
    assert read == set(range(10, 50))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"lengths": [1, 2]},
            r"lengths must be 3 finite numbers, one for each sample, not an array of int64, shape \(2,\)",
        ),
        ({"lengths": [1.0, float("nan"), 2.0]}, "lengths must be 3 finite numbers"),
        ({"lengths": [1, 2, 3], "length_group": 0}, "length_group must be at least 1 sample, not 0"),
    ],
)
def test_lengths_that_cannot_be_used_are_refused(options: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        chimera.SampleDataset(Texts([1, 2, 3]), collate=padded, **options)

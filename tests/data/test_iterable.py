"""Data sets that are read in sequence: places of workers in the stream, epochs, random numbers, mistakes."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset

from chimera.core.batch import samples_in
from chimera.core.errors import ConfigurationError, DataError
from chimera.data.iterable import IterableSamples
from chimera.data.partition import PARTITIONERS
from chimera.data.split import Split
from chimera.data.stream_provider import StreamOrder


class Numbers(IterableDataset):  # type: ignore[type-arg]
    """The numbers 0 to ``size`` - 1 with a random part below 1, each with its parity."""

    def __init__(self, size: int) -> None:
        self.size, self.epochs = size, list[int]()

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.size):
            yield torch.tensor([number + float(torch.rand(())) / 2]), number % 2


def numbers(batch: Any) -> list[int]:
    return [int(value) for value in batch[0][:, 0]]


def orders(world_size: int, batch_size: int, samples: int = 20, **options: int) -> list[StreamOrder]:
    return [StreamOrder(samples, world_size, rank, batch_size, False, **options) for rank in range(world_size)]


def test_workers_read_what_one_worker_reads_and_start_again_at_the_end() -> None:
    data = IterableSamples(Numbers(10), 10)
    many = [numbers(data.take(order.batch(step), (1, order.rank, step))) for step in range(5) for order in orders(2, 3)]
    (single,) = orders(1, 6)
    one = [numbers(data.take(single.batch(step), (2, 0, step))) for step in range(5)]
    endless = list(itertools.islice(itertools.cycle(range(10)), 30))
    assert list(itertools.chain(*many)) == list(itertools.chain(*one)) == endless


def test_a_reader_that_starts_anywhere_has_the_same_bits() -> None:
    (order,) = orders(1, 4)
    whole, late = (IterableSamples(Numbers(10), 10) for _ in range(2))
    batches = [whole.take(order.batch(step), (3, 0, step)) for step in range(7)]
    for step in (5, 6, 2):
        assert torch.equal(late.take(order.batch(step), (3, 0, step))[0], batches[step][0])
    sent = pickle.loads(pickle.dumps(whole))
    assert torch.equal(sent.take(order.batch(4), (3, 0, 4))[0], batches[4][0])


def test_orders_continue_after_a_change_of_workers() -> None:
    before, after = orders(2, 3), orders(3, 2, since=4, begin=24)
    assert {order.batch(4).first for order in after} == {24, 26, 28}
    assert max(order.batch(3).first + 3 for order in before) == 24


def test_evaluation_reads_the_first_samples_with_the_same_random_numbers() -> None:
    data = IterableSamples(Numbers(10), 7)
    first, second = (list(data.whole().pieces(3)) for _ in range(2))
    assert [samples_in(piece) for piece in first] == [3, 3, 1]
    assert list(itertools.chain(*map(numbers, first))) == list(range(7))
    assert all(torch.equal(a[0], b[0]) for a, b in zip(first, second, strict=True))


def test_facts_come_from_the_first_sample() -> None:
    data = IterableSamples(Numbers(10), 10)
    assert (data.input_shape, data.input_type, data.task, data.outputs) == ((1,), "float32", "classification", 2)


def test_epochs_are_announced() -> None:
    source = Numbers(4)
    (order,) = orders(1, 4)
    data = IterableSamples(source, 4)
    for step in range(3):
        data.take(order.batch(step))
    assert source.epochs == [0, 1, 2]


def generated() -> Iterator[dict[str, Any]]:
    for row in range(6):
        yield {"x": np.float32([row]), "label": row % 2}


def test_a_generator_function_is_a_data_set() -> None:
    batch = IterableSamples(generated, 6).take(orders(1, 4)[0].batch(1))
    assert batch["x"][:, 0].tolist() == [4, 5, 0, 1]
    assert Split.of((IterableSamples(generated, 6), (np.zeros((4, 1)), [0, 1, 0, 1]))).train.samples == 6


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            lambda: (generated, generated),
            r"generated is read in sequence, .* chimera.IterableSamples\(data, samples=N\)",
        ),
        (lambda: IterableSamples(generated, 6), "no test part can be split off: give a pair"),
        (lambda: IterableSamples(generated(), 6), "a generator can be read only once: give the function"),
        (lambda: IterableSamples(generated, 0), "needs samples of at least 1 per epoch, not 0"),
    ],
)
def test_mistakes_get_a_clear_message(source: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Split.of(source())


def test_an_empty_data_set_and_other_partitions_are_refused() -> None:
    with pytest.raises(DataError, match="the data set 'none' is empty"):
        IterableSamples(lambda: iter(()), 5, name="none").take(orders(1, 2)[0].batch(0))
    with pytest.raises(ConfigurationError, match="cannot be partitioned: use partition 'iid'"):
        IterableSamples(generated, 6).provider(None, PARTITIONERS.create("dirichlet"), workers=2, batch_size=2, seed=0)


def test_a_sample_that_is_not_finite_is_named() -> None:
    def broken() -> Iterator[Any]:
        for row in range(6):
            yield np.float32([np.nan if row == 4 else 0]), 0

    with pytest.raises(DataError, match="sample 4 of 'data' has NaN"):
        IterableSamples(broken, 6).take(orders(1, 3)[0].batch(1))

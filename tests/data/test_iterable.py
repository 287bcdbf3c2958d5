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
from chimera.data.stream import StreamBatch, StreamState, encoded
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


class Stateful(Numbers):
    """Numbers that count the samples that they read, and continue from a state."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.next, self.read = 0, 0

    def __iter__(self) -> Iterator[Any]:
        begin, self.next = self.next, 0
        for number in range(begin, self.size):
            self.next, self.read = number + 1, self.read + 1
            yield torch.tensor([number + float(torch.rand(())) / 2]), number % 2
        self.next = 0

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next = state["next"]


@pytest.mark.parametrize("until", [1, 4, 5, 6, 9])
def test_a_place_with_a_state_continues_without_reading_again(until: int) -> None:
    (order,) = orders(1, 4, samples=10)
    whole, before, after = (IterableSamples(Stateful(10), 10) for _ in range(3))
    expected = [whole.take(order.batch(step), (3, 0, step))[0] for step in range(12)]
    for step in range(until):
        before.take(order.batch(step), (3, 0, step))
    after.go_to((3, 0), before.place((3, 0)))
    for step in range(until, 12):
        assert torch.equal(after.take(order.batch(step), (3, 0, step))[0], expected[step])
    assert after._streams[3, 0]._source.read == 4 * (12 - until)
    back = after.take(order.batch(0), (3, 0, 0))[0]  # before the place: read from the start
    assert torch.equal(back, expected[0])


@pytest.mark.parametrize("state", [{"tensor": torch.zeros(2)}, {"pair": (1, 2)}, {"large": "x" * (1 << 21)}, {1: 2}])
def test_a_state_that_is_not_small_plain_data_is_not_kept(state: Any) -> None:
    class Odd(Stateful):
        def state_dict(self) -> dict[str, Any]:
            return state

    data = IterableSamples(Odd(10), 10)
    data.take(orders(1, 4)[0].batch(0), (3, 0, 0))
    assert data.place((3, 0)) == b""
    assert IterableSamples(Numbers(10), 10).place((3, 0)) == b""


@pytest.mark.parametrize(
    "place",
    [
        b"",
        b"\x00",
        b"\xc1" * 9,
        b"\x91" * 5000,
        encoded(StreamState(-1, 0, 0, 1, {})),
        encoded(StreamState(0, 0, 0, 1, {"x": "y" * (1 << 20)})),
        encoded(StreamState(0, 0, 0, 0, {})),
    ],
)
def test_a_damaged_place_is_refused(place: bytes) -> None:
    with pytest.raises(DataError, match="the place of a stream in the checkpoint is damaged"):
        IterableSamples(Stateful(10), 10).go_to((3, 0), place)


def test_a_place_of_other_shards_is_not_used() -> None:
    data = IterableSamples(Stateful(10), 10)
    data.go_to((3, 0), encoded(StreamState(4, 0, 1, 2, {"next": 9})))
    assert numbers(data.take(orders(1, 4)[0].batch(1), (3, 0, 1))) == [4, 5, 6, 7]


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
        (lambda: generated, "'generated' is read in sequence, so no test part can be split off: give a pair"),
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


def test_evaluation_reads_no_sample_twice() -> None:
    def five() -> Iterator[Any]:
        for row in range(5):
            yield np.full(2, row, np.float32), row % 2

    data = IterableSamples(five, samples=12)
    read = [samples_in(piece) for piece in data.pieces(3)]
    assert read == [3, 2]
    assert [samples_in(piece) for piece in IterableSamples(five, samples=4).pieces(3)] == [3, 1]
    assert data.largest_target() == 1


def test_an_error_of_a_stream_names_the_data_set() -> None:
    def broken() -> Iterator[Any]:
        yield from ((np.zeros(2, np.float32), 0) for _ in range(4))
        raise OSError("no network")

    data = IterableSamples(broken, samples=12, name="remote")
    for read in (lambda: list(data.pieces(3)), lambda: data.take(StreamBatch(3, 3, 0, 1))):
        with pytest.raises(OSError, match="no network") as caught:
            read()
        assert caught.value.__notes__ == ["while samples from number 3 of the data set 'remote' were read"]


@pytest.fixture
def repeated_warnings() -> Iterator[None]:
    """Let torch repeat warnings that it otherwise gives once in a process."""
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)


@pytest.mark.usefixtures("repeated_warnings")
def test_samples_that_another_worker_reads_are_passed_over_like_read_ones() -> None:
    held = np.arange(8.0, dtype=np.float32)[:, None]
    held.flags.writeable = False

    def rows() -> Iterator[Any]:
        for number in range(8):
            if number == 5:
                raise RuntimeError("disk error")
            yield torch.from_numpy(held[number]), 0

    data = IterableSamples(rows, 8)
    assert data.take(StreamBatch(2, 2, 0, 1))[0].tolist() == [[2.0], [3.0]]
    with pytest.raises(RuntimeError, match="disk error") as caught:
        data.take(StreamBatch(6, 2, 0, 1))
    assert caught.value.__notes__ == ["while samples from number 4 of the data set 'data' were read"]

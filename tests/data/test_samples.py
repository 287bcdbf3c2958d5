"""Data sets that are read lazily: samples, collation, random transforms, labels, splits and mistakes."""

from __future__ import annotations

import pickle
import random
from datetime import date
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from chimera.core.batch import samples_in
from chimera.core.errors import ConfigurationError, DataError
from chimera.data.assignment import orders
from chimera.data.partition import PARTITIONERS
from chimera.data.samples import SampleDataset
from chimera.data.split import Split


class Noisy(Dataset):  # type: ignore[type-arg]
    """Ten samples with noise from all three global generators; counts the samples that were read."""

    def __init__(self, size: int = 10) -> None:
        self.size, self.read = size, list[int]()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, row: int) -> tuple[Any, int]:
        self.read.append(row)
        noise = float(torch.rand(())) + np.random.rand() + random.random()
        return torch.full((3,), row + noise), row % 3


class Labelled(Noisy):
    classes = ("cat", "dog", "cow")

    @property
    def targets(self) -> list[int]:
        return [row % 3 for row in range(self.size)]


def numbers(batch: Any) -> Any:
    return batch[0].numpy()


def test_random_transforms_depend_on_the_key_alone() -> None:
    data, rows = SampleDataset(Noisy()), np.arange(4)
    first = numbers(data.take(rows, (1, 0, 7)))
    torch.rand(3), np.random.rand(3), random.random()
    assert np.array_equal(first, numbers(data.take(rows, (1, 0, 7))))
    for other in ((2, 0, 7), (1, 1, 7), (1, 0, 8)):
        assert not np.array_equal(first, numbers(data.take(rows, other)))


def test_reading_does_not_change_the_states_of_the_generators() -> None:
    data = SampleDataset(Noisy())
    for draw in (lambda: float(torch.rand(())), random.random, lambda: float(np.random.rand())):
        torch.manual_seed(3), random.seed(3), np.random.seed(3)
        expected = draw()
        torch.manual_seed(3), random.seed(3), np.random.seed(3)
        data.take(np.arange(4), (1, 2, 3))
        assert draw() == expected


def test_only_the_samples_of_a_batch_are_read() -> None:
    source = Noisy(100_000)
    split = Split.of(source)
    split.train.take(np.array([3, 5]))
    assert len(source.read) == 2
    orders(PARTITIONERS.create("iid"), split.train, 4, 8, seed=0)
    assert len(source.read) == 2


def test_a_split_has_every_sample_once_and_keeps_the_shares_of_known_labels() -> None:
    split = Split.of(Labelled(90), seed=4)
    assert np.array_equal(np.bincount(split.test.targets), [6, 6, 6])
    assert np.array_equal(np.sort(np.r_[split.train.rows, split.test.rows]), np.arange(90))
    assert split.train.classes == ("cat", "dog", "cow")


def test_labels_are_read_from_the_samples_if_a_partition_needs_them() -> None:
    source = Noisy(30)
    parts = orders(PARTITIONERS.create("by-label", {"shards_per_worker": 1}), SampleDataset(source), 3, 4, seed=0)
    assert [len({row % 3 for row in part.own().tolist()}) for part in parts] == [1, 1, 1]
    assert sorted(source.read[1:]) == list(range(30))


def test_labels_of_a_subset_and_of_the_user() -> None:
    subset = Subset(Labelled(10), [1, 2, 4])
    assert SampleDataset(subset).targets.tolist() == [1, 2, 1]
    assert SampleDataset(Noisy(4), labels=[3, 2, 1, 0]).subset(np.array([0, 3])).targets.tolist() == [3, 0]
    with pytest.raises(DataError, match="4 samples but 3 labels"):
        _ = SampleDataset(Noisy(4), labels=[3, 2, 1]).targets


def test_getitems_reads_a_batch_at_once() -> None:
    class Batched:
        def __len__(self) -> int:
            return 6

        def __getitem__(self, row: int) -> Any:
            raise AssertionError

        def __getitems__(self, rows: list[int]) -> list[Any]:
            return [{"x": np.float32(row), "label": row % 2} for row in rows]

    batch = Split.of(Batched()).train.take(np.array([0, 2]))
    assert set(batch) == {"x", "label"}
    assert samples_in(batch) == 2


def test_a_collate_function_pads() -> None:
    class Words(Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 8

        def __getitem__(self, row: int) -> Any:
            return torch.arange(row + 1), row % 2

    def pad(samples: list[Any]) -> Any:
        words, labels = zip(*samples, strict=True)
        return torch.nn.utils.rnn.pad_sequence(words, batch_first=True), torch.tensor(labels)

    assert SampleDataset(Words(), collate=pad).take(np.array([0, 3]))[0].shape == (2, 4)
    with pytest.raises(DataError, match=r"samples 0 to 3 of 'words' cannot be collated.*give a collate function"):
        SampleDataset(Words(), name="words").take(np.array([0, 3]))


def test_a_value_that_is_not_finite_is_found_at_reading_with_its_sample() -> None:
    inputs = torch.zeros(10, 2, 2)
    inputs[7, 1, 0] = float("nan")
    data = SampleDataset(TensorDataset(inputs, torch.zeros(10, 3, dtype=torch.int64)), name="mine")
    data.take(np.array([1, 2]))
    with pytest.raises(DataError, match="sample 7 of 'mine' has NaN"):
        data.take(np.array([2, 7]))


def test_a_failed_read_names_the_sample() -> None:
    class Broken(Noisy):
        def __getitem__(self, row: int) -> Any:
            raise OSError("no such file")

    with pytest.raises(OSError, match="no such file") as caught:
        SampleDataset(Broken(), name="broken").take(np.array([4]))
    assert "while sample 4 of the data set 'broken' was read" in caught.value.__notes__


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (lambda: DataLoader(Noisy(), batch_size=2), "give its data set"),
        (lambda: Noisy(0), "is empty"),
        (lambda: (number for number in range(3)), "give the function that makes it"),
        (lambda: ((number for number in range(3)), [1]), "can be read once only"),
    ],
)
def test_mistakes_get_a_clear_message(source: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Split.of(source())


def test_standardizing_and_reading_options_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="use a transform"):
        Split.of(Noisy(), standardize=True)
    with pytest.raises(ConfigurationError, match="options target do not apply"):
        Split.of(Noisy(), target="label")


def test_tensors_in_memory_stay_arrays() -> None:
    split = Split.of(TensorDataset(torch.rand(10, 3), torch.arange(10) % 2))
    assert split.train.inputs.shape == (8, 3)
    tokens = Split.of(TensorDataset(torch.zeros(10, 5, dtype=torch.int64), torch.zeros(10, 5, dtype=torch.int64)))
    assert isinstance(tokens.train, SampleDataset)


def test_a_lazy_data_set_can_be_pickled() -> None:
    data = pickle.loads(pickle.dumps(SampleDataset(Labelled(12)).subset(np.array([3, 4]))))
    assert numbers(data.take(np.array([1]), (1,))).shape == (1, 3)


def test_lists_of_numbers_are_arrays_and_lists_of_tensors_are_several_inputs() -> None:
    samples: list[Any] = [([1.0, 2.0], [[3, 4]], [torch.zeros(2), torch.ones(2)], 7)] * 3
    first, second, several, label = SampleDataset(samples).take(np.arange(3))
    assert first.tolist() == [[1.0, 2.0]] * 3
    assert second.shape == (3, 1, 2)
    assert [part.shape for part in several] == [(3, 2), (3, 2)]
    assert label.tolist() == [7] * 3


@pytest.mark.parametrize("target", [[3], (3,), torch.tensor([3]), [torch.tensor(3)]], ids=str)
def test_a_target_in_a_list_of_one_is_a_target(target: Any) -> None:
    inputs, targets = SampleDataset([(torch.zeros(2), target)] * 4).take(np.arange(4))
    assert np.asarray(targets).ravel().tolist() == [3] * 4
    assert inputs.shape == (4, 2)


def test_a_batch_of_an_unknown_class_is_refused_in_one_line() -> None:
    class Pair:
        def __init__(self, samples: list[Any]) -> None:
            self.samples = samples

    with pytest.raises(DataError, match=r"of type Pair, has no array or tensor: give a collate function"):
        _ = SampleDataset([1, 2], collate=Pair).input_shape


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda row: None if row == 3 else (np.zeros(2), 0), "sample 3 is None"),
        (lambda row: (Image.new("L", (2, 2)), row % 2), "part 0 is of type Image in sample 0: convert it to an array"),
        (lambda row: {"x": np.zeros(2), "at": date(2020, 1, 1 + row)}, "'at' is of type date in sample 0"),
    ],
)
def test_samples_that_no_batch_can_hold_are_named(make: Any, message: str) -> None:
    data = SampleDataset([make(row) for row in range(8)])
    with pytest.raises(DataError, match=message) as caught:
        data.take(np.arange(8))
    assert "\n" not in str(caught.value)

"""Counts of what each worker holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chimera.core.worker_counts import MAX_LABELS
from chimera.data.assignment import orders
from chimera.data.dataset import Dataset
from chimera.data.partition import PARTITIONERS
from chimera.data.samples import SampleDataset
from chimera.data.worker_counts import worker_counts


def counted(name: str, labels: Any, workers: int, **options: Any) -> Any:
    data = Dataset.of((np.zeros((len(labels), 1)), labels), task="classification")
    found = orders(PARTITIONERS.create(name), data, workers, 4, seed=0, **options)
    return worker_counts(data, found)


@settings(max_examples=30)
@given(labels=st.lists(st.integers(0, 30), min_size=8, max_size=90), share=st.sampled_from([None, 0.3]))
def test_all_samples_are_counted_once(labels: list[int], share: float | None) -> None:
    found = counted("quantity", np.array(labels), 3, test_share=share)
    total = np.sum([each.counts for each in found.workers], axis=0)
    assert sum(each.samples for each in found.workers) == total.sum() == len(labels)
    shown = {name: np.sum(np.array(labels) == int(name)) for name in found.labels}
    assert total[: len(shown)].tolist() == list(shown.values())
    assert len(shown) + found.more_labels == len(set(labels))
    assert len(shown) <= MAX_LABELS
    assert all(each.counts and each.classes <= len(set(labels)) for each in found.workers)
    assert [each.test for each in found.workers] == (
        [None] * 3
        if share is None
        else [min(max(round(0.3 * each.samples), 1), each.samples - 1) for each in found.workers]
    )


def test_the_skew_is_0_for_equal_shares_and_largest_for_one_label_per_worker() -> None:
    labels = np.repeat(np.arange(5), 20)
    assert counted("replicate", labels, 5).skew == 0.0
    assert counted("contiguous", labels, 5).skew == pytest.approx(0.8)  # 4 of 5 labels are missing
    halves = counted("contiguous", np.array([0, 1, 1, 1]), 2)
    assert halves.skew == pytest.approx((0.25 + 0.25) / 2)  # shares (1/2, 1/2) and (0, 1) of labels of (1/4, 3/4)


def test_many_workers_are_counted_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.random.default_rng(0).integers(0, 30, 400).astype(np.uint64)
    whole = counted("iid", labels, 40)
    monkeypatch.setattr("chimera.data.worker_counts._MAX_COUNTS", 90)
    pieces = counted("iid", labels, 40)
    assert pieces.workers == whole.workers
    assert pieces.skew == pytest.approx(whole.skew)


def test_groups_are_named_if_they_are_few() -> None:
    data = Dataset(
        np.zeros((40, 1), np.float32), np.zeros(40, np.float32), groups=["abcdefgh"[row % 8] for row in range(40)]
    )
    found: Any = worker_counts(data, orders(PARTITIONERS.create("contiguous"), data, 20, 1, seed=0))
    assert found.workers[1].group_names == ("c", "d")
    assert (found.labels, found.skew, found.workers[0].classes) == ((), None, None)
    whole: Any = worker_counts(data, orders(PARTITIONERS.create("contiguous"), data, 1, 1, seed=0))
    assert (whole.workers[0].groups, whole.workers[0].group_names) == (8, tuple("abcde"))


def test_samples_are_not_read_for_their_labels() -> None:
    class Unread:
        def __len__(self) -> int:
            return 10

        def __getitem__(self, row: int) -> Any:
            raise AssertionError

    data = SampleDataset(Unread())
    found: Any = worker_counts(data, orders(PARTITIONERS.create("iid"), data, 2, 1, seed=0))
    assert [(each.samples, each.counts) for each in found.workers] == [(5, ()), (5, ())]


def test_streams_have_no_counts() -> None:
    class Stream:
        def batch(self, step: int) -> Any:
            raise AssertionError

    assert worker_counts(Dataset.of((np.zeros((4, 1)), np.arange(4) % 2)), [Stream()]) is None

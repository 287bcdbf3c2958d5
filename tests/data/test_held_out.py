"""Rows that each client keeps for its evaluation."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chimera.core.errors import DataError
from chimera.data.assignment import orders
from chimera.data.dataset import Dataset
from chimera.data.held_out import HeldOut
from chimera.data.order import OwnOrder
from chimera.data.partition import PARTITIONERS
from chimera.data.provider import PartitionedData
from chimera.data.samples import SampleDataset
from chimera.training.worker.own_order import bound_order

cases = st.integers(1, 60).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(0, 4), min_size=n, max_size=n).map(np.array),
        st.lists(st.integers(0, n - 1), min_size=1, max_size=n, unique=True).map(np.array),
    )
)
shares = st.floats(0.01, 0.99)


def data(labels: np.ndarray) -> Dataset:
    return Dataset(np.zeros((len(labels), 1), np.float32), labels, groups=np.arange(len(labels)) % 9)


@settings(max_examples=30)
@given(case=cases, share=shares, seed=st.integers(0, 99))
def test_a_client_keeps_its_share_and_trains_on_all_other_rows(case: Any, share: float, seed: int) -> None:
    labels, rows = case
    trained, kept = HeldOut(share, seed, len(labels), labels).divided(rows)
    assert sorted([*trained, *kept]) == sorted(rows)
    assert len(trained) >= 1
    assert len(kept) == (min(max(round(share * len(rows)), 1), len(rows) - 1) if len(rows) > 1 else 0)
    assert trained.tolist() == [row for row in rows.tolist() if row not in set(kept.tolist())]


@settings(max_examples=30)
@given(case=cases, share=shares, seed=st.integers(0, 99))
def test_the_same_rows_are_kept_in_whatever_order_and_by_whichever_client(case: Any, share: float, seed: int) -> None:
    labels, rows = case
    one, other = HeldOut(share, seed, len(labels), labels), HeldOut(share, seed, len(labels), labels)
    other.divided(np.arange(len(labels)))  # another client
    assert np.array_equal(one.divided(rows)[1], other.divided(np.random.default_rng(seed).permutation(rows))[1])


@settings(max_examples=30)
@given(case=cases, share=shares, seed=st.integers(0, 99))
def test_each_label_has_its_share_of_the_kept_rows(case: Any, share: float, seed: int) -> None:
    labels, rows = case
    _, kept = HeldOut(share, seed, len(labels), labels).divided(rows)
    for label in set(labels[rows].tolist()):
        exact = np.sum(labels[rows] == label) * len(kept) / len(rows)
        assert abs(np.sum(labels[kept] == label) - exact) < 2


def test_rare_labels_are_kept_as_often_as_others() -> None:
    labels = np.r_[np.zeros(90, np.int64), np.arange(1, 11)]
    kept = [HeldOut(0.2, seed, 100, labels).divided(np.arange(100))[1] for seed in range(300)]
    counts = np.bincount(np.concatenate([labels[rows] for rows in kept]), minlength=11)
    assert counts[0] / 300 == pytest.approx(18, abs=0.5)
    assert counts[1:].mean() / 300 == pytest.approx(0.2, abs=0.03)


def test_most_rows_keep_their_role_if_clients_join() -> None:
    labels = np.random.default_rng(0).integers(0, 3, 3000)

    def kept(clients: int) -> set[int]:
        found = orders(PARTITIONERS.create("dirichlet"), data(labels), clients, 8, seed=0, test_share=0.2)
        return {int(row) for order in found for row in order.kept}  # type: ignore[attr-defined]

    before, after = kept(10), kept(11)
    assert len(before & after) > 0.75 * len(before)  # by chance a fifth would be in both


@pytest.mark.parametrize("name", ["iid", "contiguous", "quantity", "by-label", "dirichlet", "by-group"])
def test_each_row_is_read_or_kept_by_one_worker(name: str) -> None:
    labels = np.random.default_rng(1).integers(0, 4, 200)
    found: list[Any] = orders(PARTITIONERS.create(name), data(labels), 5, 7, seed=3, test_share=0.25)
    trained, kept = ([row for order in found for row in rows(order)] for rows in (lambda o: o.own(), lambda o: o.kept))
    assert sorted([*trained, *kept]) == list(range(200))
    for order in found:
        read = np.concatenate([order.batch(step) for step in range(40)])
        assert set(read.tolist()) == set(order.own().tolist())
        assert order.share == len(order.own())
        again = pickle.loads(pickle.dumps(order))
        assert np.array_equal(again.kept, order.kept)
    assert found[0].steps_per_epoch == pytest.approx(len(trained) / 35)
    provider = PartitionedData(data(labels), PARTITIONERS.create(name), 7, 3, 0.25)
    assert provider.train_size(5) == len(trained)


def test_replicas_keep_the_same_rows() -> None:
    one, other = orders(PARTITIONERS.create("replicate"), data(np.arange(40) % 4), 2, 5, seed=0, test_share=0.5)
    assert one.kept is other.kept  # type: ignore[attr-defined]
    assert one.steps_per_epoch == 20 / 10


def test_a_client_with_one_row_trains_on_it_and_keeps_none() -> None:
    def uneven(labels: Any, world_size: int, rng: Any) -> list[np.ndarray]:
        return [np.arange(1), np.arange(1, 10)]

    single, rest = orders(uneven, data(np.arange(10) % 2), 2, 1, seed=0, test_share=0.2)
    assert (single.own().tolist(), single.kept.tolist(), len(rest.kept)) == ([0], [], 2)  # type: ignore[attr-defined]
    with pytest.raises(DataError, match="each worker has a single sample, so none can keep one"):
        orders(PARTITIONERS.create("iid"), data(np.arange(10) % 2), 10, 1, seed=0, test_share=0.2)


class Tagged:
    """Rows with two labels each."""

    targets = np.tile([[0, 1], [1, 1]], (5, 1))

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros(1, np.float32), self.targets[row]


def test_a_node_keeps_rows_with_several_labels_at_random() -> None:
    order = bound_order(OwnOrder(2, 0, test_share=0.2), SampleDataset(Tagged()), 0)
    expected = HeldOut(0.2, 0, 10).divided(np.arange(10))[1]
    np.testing.assert_array_equal(order.kept, expected)

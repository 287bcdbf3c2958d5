from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera.core.errors import ConfigurationError, DataError, UnknownNameError
from chimera.data.partition import PARTITIONERS, ByGroup, ByLabel, Dirichlet, Iid, Quantity, Replicate

TRUE_PARTITIONS: list[tuple[str, dict[str, Any]]] = [
    ("iid", {}),
    ("contiguous", {}),
    ("quantity", {}),
    ("quantity", {"exponent": 3}),
    ("by-label", {"shards_per_worker": 1}),
    ("dirichlet", {"alpha": 1e-6}),
    ("dirichlet", {}),
    ("dirichlet", {"alpha": 1e6}),
    ("dirichlet", {"balanced": False, "alpha": 0.01}),
    ("dirichlet", {"balanced": False}),
]

labels_and_workers = st.integers(1, 60).flatmap(
    lambda n: st.tuples(st.lists(st.integers(0, 6), min_size=n, max_size=n).map(np.array), st.integers(1, n))
)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "options"), TRUE_PARTITIONS)
@given(case=labels_and_workers, seed=st.integers(0, 1000))
def test_every_sample_is_assigned_to_one_worker_and_no_worker_is_empty(name, options, case, seed):
    labels, world_size = case
    parts = PARTITIONERS.create(name, options)(labels, world_size, rng(seed))
    assert len(parts) == world_size
    assert all(len(part) for part in parts)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))


@pytest.mark.parametrize(("name", "options"), TRUE_PARTITIONS)
def test_equal_seeds_give_equal_partitions(name, options):
    labels = rng(3).integers(0, 5, 200)
    one, other = (PARTITIONERS.create(name, options)(labels, 7, rng(1)) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@given(case=labels_and_workers)
def test_replicas_hold_all_samples(case):
    labels, world_size = case
    parts = Replicate()(labels, world_size, rng())
    assert [part.tolist() for part in parts] == [list(range(len(labels)))] * world_size


@given(n=st.integers(1, 200), seed=st.integers(0, 99), world_size=st.integers(1, 200))
def test_iid_and_balanced_dirichlet_sizes_differ_by_one_at_most(n, seed, world_size):
    labels = rng(seed).integers(0, 3, max(n, world_size))
    for partitioner in (Iid(), Dirichlet(alpha=0.1)):
        sizes = [len(part) for part in partitioner(labels, world_size, rng(seed))]
        assert max(sizes) - min(sizes) <= 1


def shares(labels: np.ndarray, parts: list[np.ndarray]) -> np.ndarray:
    """Return the share of each class in each part, shape (workers, classes)."""
    return np.stack([np.bincount(labels[part], minlength=10) / len(part) for part in parts])


def test_dirichlet_mixtures_range_from_one_class_to_iid_as_alpha_grows():
    labels = np.repeat(np.arange(10), 1000)
    purest = [shares(labels, Dirichlet(alpha=alpha)(labels, 10, rng())).max(axis=1).mean() for alpha in (1e-4, 1, 1e5)]
    assert purest[0] > 0.9
    assert purest[0] > purest[1] > purest[2]
    assert purest[2] < 0.12


@pytest.mark.parametrize("alpha", [1.0, 1e5])
def test_the_mean_of_dirichlet_mixtures_is_the_share_of_the_classes(alpha):
    """The mean of Dirichlet(alpha p) is p: the first worker's mean over many seeds is within five standard errors of p."""
    labels, expected, draws = np.repeat(np.arange(3), [800, 150, 50]), np.array([0.8, 0.15, 0.05]), 200
    first = [shares(labels, Dirichlet(alpha=alpha)(labels, 10, rng(seed))[:1])[0, :3] for seed in range(draws)]
    variance = (
        expected * (1 - expected) * (1 / (alpha + 1) + 1 / 100)
    )  # of the mixture, and of 100 samples drawn from it
    assert (np.abs(np.mean(first, axis=0) - expected) < 5 * np.sqrt(variance / draws)).all()


def test_dirichlet_draws_a_second_mixture_from_the_remaining_samples():
    """Each mixture is one class. The first worker has taken 100 of 150 of class 0; 50, 50 and 100 samples are left.

    The second one has 50 of class 1 and 50 of another class in two ways: class 1 first (probability 50 / 300), then class 0
    (50 / 150) or 2; or class 0 first (150 / 300), then class 1 (50 / 150). So the other class is 0 in two of three cases.
    """
    labels, of_class_0 = np.repeat(np.arange(3), [150, 50, 100]), []
    for seed in range(2400):
        first, second, _ = shares(labels, Dirichlet(alpha=1e-6)(labels, 3, rng(seed)))[:, :3] * 100
        if np.allclose(first, [100, 0, 0]) and np.isclose(second[1], 50):
            of_class_0.append(second[0] > 0)
    cases = len(of_class_0)  # about 2400 / 2 / 3
    assert cases > 300
    assert abs(np.mean(of_class_0) - 2 / 3) < 5 * np.sqrt(2 / 3 * 1 / 3 / cases)


@pytest.mark.parametrize("balanced", [True, False])
def test_dirichlet_respects_min_samples(balanced):
    labels = rng().integers(0, 3, 100)
    for seed in range(20):
        parts = Dirichlet(alpha=0.01, balanced=balanced, min_samples=9)(labels, 10, rng(seed))
        assert min(map(len, parts)) >= 9


def test_by_label_gives_each_worker_few_classes():
    labels = rng().permutation(np.repeat(np.arange(10), 100))
    parts = ByLabel(shards_per_worker=2)(labels, 50, rng())
    assert all(len(set(labels[part])) <= 2 for part in parts)
    assert len({len(part) for part in parts}) == 1


def test_quantity_follows_the_power_law():
    sizes = np.array([len(part) for part in Quantity(exponent=1)(np.zeros(100_000), 4, rng())])
    assert np.allclose(sizes / sizes[0], 1 / np.arange(1, 5), atol=1e-3)
    assert {len(part) for part in Quantity(exponent=0)(np.zeros(100), 4, rng())} == {25}


@pytest.mark.parametrize("name", ["iid", "contiguous", "quantity", "by-label", "dirichlet"])
def test_more_workers_than_samples_is_an_error_that_names_the_partition(name):
    with pytest.raises(DataError, match=f"'{name}' needs .* each of 4 workers, and has 3"):
        PARTITIONERS.create(name)(np.array([0, 1, 2]), 4, rng())


@pytest.mark.parametrize("name", ["by-label", "dirichlet"])
@pytest.mark.parametrize("targets", [np.zeros(9, np.float32), np.zeros((9, 2), np.float32)])
def test_a_partition_by_class_rejects_values(name, targets):
    with pytest.raises(DataError, match=f"'{name}' needs class labels.*use 'iid'"):
        PARTITIONERS.create(name)(targets, 2, rng())


@pytest.mark.parametrize("name", ["iid", "contiguous", "quantity", "replicate"])
def test_other_partitions_accept_values_of_any_shape(name):
    parts = PARTITIONERS.create(name)(np.zeros((9, 2), np.float32), 2, rng())
    assert set(np.concatenate(parts)) == set(range(9))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dirichlet", {"alpha": 0}),
        ("dirichlet", {"alpha": float("nan")}),
        ("dirichlet", {"alpha": "much"}),
        ("dirichlet", {"min_samples": 0}),
        ("by-label", {"shards_per_worker": 0}),
        ("quantity", {"exponent": -1}),
        ("iid", {"alpha": 1}),
    ],
)
def test_an_invalid_option_is_an_error_that_names_it(name, options):
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        PARTITIONERS.create(name, options)


def test_no_workers_and_unknown_names_are_errors():
    with pytest.raises(ConfigurationError, match="at least 1"):
        Iid()(np.zeros(3), 0, rng())
    with pytest.raises(UnknownNameError, match="by-label, contiguous, dirichlet, iid, quantity, replicate"):
        PARTITIONERS.create("fair")


def test_all_samples_are_assigned_to_a_thousand_workers():
    labels = rng().integers(0, 10, 60_000)
    assert sum(map(len, Dirichlet(alpha=0.3)(labels, 1000, rng()))) == 60_000


groups_and_workers = st.lists(st.integers(0, 12), min_size=1, max_size=80).flatmap(
    lambda groups: st.tuples(st.just(np.array(groups)), st.integers(1, len(set(groups))))
)


@given(case=groups_and_workers, seed=st.integers(0, 1000))
def test_groups_are_never_divided_and_sizes_differ_by_one_group_at_most(case, seed):
    groups, world_size = case
    parts = ByGroup()(groups, world_size, rng(seed))
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(groups)))
    held = [set(groups[part].tolist()) for part in parts]
    assert all(held)
    assert sum(map(len, held)) == len(set(groups.tolist()))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= np.bincount(groups).max()
    assert all(map(np.array_equal, parts, ByGroup()(groups, world_size, rng(seed))))


def test_the_largest_group_goes_first_to_the_worker_with_the_fewest_samples():
    groups = np.repeat(np.arange(5), [50, 40, 30, 20, 10])
    sizes = sorted(len(part) for part in ByGroup()(groups, 3, rng()))
    assert sizes == [50, 50, 50]


def test_seeds_decide_between_equal_groups_only():
    equal, unequal = np.repeat(np.arange(6), 5), np.repeat(np.arange(6), [1, 2, 4, 8, 16, 32])
    pairs = {tuple(sorted(map(tuple, (part.tolist() for part in ByGroup()(equal, 3, rng(seed)))))) for seed in range(9)}
    assert len(pairs) > 1
    sets = {
        tuple(sorted(map(tuple, (part.tolist() for part in ByGroup()(unequal, 3, rng(seed)))))) for seed in range(9)
    }
    assert len(sets) == 1


def test_one_group_per_worker_follows_the_order_of_the_groups():
    groups = np.array([7, 3, 7, 5, 3])
    parts = ByGroup(one_per_worker=True)(groups, 3, rng())
    assert [part.tolist() for part in parts] == [[1, 4], [3], [0, 2]]
    with pytest.raises(DataError, match="has 3 groups for 2 workers: set workers to 3"):
        ByGroup(one_per_worker=True)(groups, 2, rng())
    with pytest.raises(DataError, match="has 3 groups for 4 workers: use at most 3 workers"):
        ByGroup()(groups, 4, rng())

"""Clipping, noise and their accountant."""

from __future__ import annotations

import math
import sys
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy.stats import kstest

from chimera.core.errors import MissingExtraError
from chimera.privacy.accountant import Accountant
from chimera.privacy.noise import TAIL, add_noise, clip, source


@given(arrays(np.float32, st.integers(0, 30), elements=st.floats(-1e6, 1e6, width=32)), st.floats(1e-3, 1e3))
def test_a_clipped_update_is_within_the_bound_and_has_the_same_direction(
    update: NDArray[np.float32], norm: float
) -> None:
    before = update.astype(np.float64)
    had = clip(update, norm)
    assert had == pytest.approx(np.linalg.norm(before), rel=1e-6, abs=1e-30)
    length = float(np.linalg.norm(update.astype(np.float64)))
    assert length <= norm
    if had <= norm:
        np.testing.assert_array_equal(update, before.astype(np.float32))
    else:
        assert length == pytest.approx(norm, rel=1e-5)
        np.testing.assert_allclose(update, before * (norm / had), rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("norm", [1e-44, 1e-6, 3e-6, 1e-3, 1.0])
def test_the_bound_holds_for_updates_whose_factor_has_few_bits(norm: float) -> None:
    """The factor of the largest finite updates is subnormal in float32, and would round up."""
    for size in (1, 7, 100, 1000):
        update = np.full(size, np.finfo(np.float32).max)
        clip(update, norm)
        assert np.linalg.norm(update.astype(np.float64)) <= norm
        if norm >= 1e-6:
            assert np.linalg.norm(update.astype(np.float64)) == pytest.approx(norm, rel=1e-5)


def test_noise_has_the_requested_deviation() -> None:
    update = np.zeros(400_000, np.float32)
    add_noise(update, 0.25, source("run", 1, 2))
    assert update.std() == pytest.approx(0.25, rel=0.01)  # 9 standard deviations of this estimate
    assert abs(update.mean()) < 0.25 * 6 / math.sqrt(len(update))
    assert np.abs(update).max() < 0.25 * TAIL


def test_system_noise_is_normal_and_uses_no_statistical_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_generator(*_: object) -> None:
        raise AssertionError("a generator whose numbers can be computed from others")

    monkeypatch.setattr(np.random, "default_rng", no_generator)
    drawn = source("system", 1).standard_normal(300_001, np.float32)
    assert (drawn.dtype, drawn.shape) == (np.float32, (300_001,))
    assert kstest(drawn, "norm").pvalue > 1e-6  # one run in a million fails by chance
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 6 / math.sqrt(len(drawn))
    assert len(np.unique(drawn[:1000])) > 990
    assert np.isfinite(drawn).all()
    assert source("system").standard_normal(0, np.float32).shape == (0,)


def test_run_noise_depends_on_its_key_and_system_noise_does_not_repeat() -> None:
    def drawn(*key: int, seed: str = "run") -> list[float]:
        return source(seed, *key).standard_normal(4).tolist()  # type: ignore[arg-type]

    assert drawn(1, 2) == drawn(1, 2)
    assert drawn(1, 2) != drawn(1, 3)
    assert drawn(1, 2, seed="system") != drawn(1, 2, seed="system")


def test_epsilon_equals_that_of_opacus() -> None:
    from opacus.accountants import RDPAccountant

    ours = Accountant()
    for _ in range(4):
        ours.count(1.1, 0.01, 2500)
    theirs = RDPAccountant()
    theirs.history = [(1.1, 0.01, 10_000)]
    assert ours.history == [[1.1, 0.01, 10_000]]
    assert ours.epsilon(1e-5) == theirs.get_epsilon(1e-5) == pytest.approx(5.632, abs=1e-3)


def test_epsilon_without_sampling_follows_from_the_gaussian_mechanism() -> None:
    """Mironov 2017: k rounds have a Rényi divergence of k a / (2 z^2) at order a, and epsilon is below the minimum."""
    noise, rounds, delta = 4.0, 20, 1e-5
    ours = Accountant()
    ours.count(noise, 1.0, rounds)
    orders = np.linspace(1.01, 200, 20_000)
    bound = float((rounds * orders / (2 * noise**2) + math.log(1 / delta) / (orders - 1)).min())
    assert 0.8 * bound < ours.epsilon(delta) < bound


def test_rounds_are_counted_in_any_order_and_history_continues() -> None:
    first, second = Accountant(), Accountant()
    for noise in (1.0, 1.5, 1.0):
        first.count(noise, 0.1, 5)
    for noise in (1.5, 1.0, 1.0):
        second = Accountant(second.history)
        second.count(noise, 0.1, 5)
    assert first.epsilon(1e-6) == pytest.approx(second.epsilon(1e-6), rel=1e-12)
    assert first.epsilon(1e-6) > Accountant([[1.0, 0.1, 10]]).epsilon(1e-6)


def test_epsilon_is_larger_if_participants_are_not_secret() -> None:
    accountant = Accountant([[2.0, 0.1, 30]])
    assert (
        accountant.epsilon(1e-5) < accountant.epsilon(1e-5, sampled=False) == Accountant([[2.0, 1.0, 30]]).epsilon(1e-5)
    )


def test_epsilon_is_zero_without_rounds_and_infinite_after_one_without_noise() -> None:
    assert Accountant().epsilon(1e-5) == 0
    assert Accountant([[1.0, 1.0, 1], [0.0, 1.0, 1]]).epsilon(1e-5) == math.inf


def test_a_missing_opacus_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opacus.accountants", None)
    with pytest.raises(MissingExtraError, match=r"epsilon needs the package 'opacus'.*chimera-dml\[privacy\]"):
        Accountant([[1.0, 0.5, 1]]).epsilon(1e-5)


@given(st.lists(st.tuples(st.floats(0.05, 1e3), st.integers(1, 10_000)), min_size=1, max_size=4), st.floats(1e-12, 0.1))
def test_epsilon_without_sampling_needs_no_opacus_and_equals_that_of_opacus(
    rounds: list[tuple[float, int]], delta: float
) -> None:
    from opacus.accountants import RDPAccountant

    theirs = RDPAccountant()
    theirs.history = [(noise, 1.0, count) for noise, count in rounds]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = theirs.get_epsilon(delta)
    ours = Accountant([[noise, 1.0, count] for noise, count in rounds])
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, "opacus.accountants", None)
        assert ours.epsilon(delta) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("noise", [1e-300, 1e-160, 1e300])
def test_epsilon_of_extreme_noise_is_a_number(noise: float) -> None:
    found = Accountant([[noise, 1.0, 10]]).epsilon(1e-5)
    assert found == math.inf if noise < 1 else 0 < found < 1

"""The all-reduce forms of codecs: their algebra, in groups of real actors in virtual time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chimera.codecs.codec import CODECS
from chimera.codecs.low_rank import initial_q, tensors
from chimera.core.engine import ENGINES, Engine, Group
from chimera.core.errors import ActorLost, ConfigurationError
from chimera.core.parameters import Flat, Layout

LAYOUT = Layout(("a", "bias", "b", "scalar", "conv"), ((12, 20), (20,), (30, 9), (), (8, 2, 3, 3)))
ABLE = ["error-feedback", "identity", "powersgd"]
POWER = {"rank": 2}
FORGETFUL = {"rank": 2, "error_feedback": False}


class Member:
    """A member of a group; records the number of elements of each collective."""

    def __init__(self, codec: str, options: dict[str, Any], layout: Layout) -> None:
        self.reduction, self.layout = CODECS.reduction(codec, options, seed=7), layout
        self.given: list[int] = []

    def reduce(self, group: Group, *vectors: Flat, commit: bool = True) -> list[Flat]:
        return [self.one(group, vector, commit).copy() for vector in vectors]

    def draw(self, group: Group, rank: int, steps: int) -> None:
        """Reduce random vectors that are drawn on the members."""
        self.reduce(group, *vectors(group.size, steps)[rank])

    def one(self, group: Group, vector: Flat, commit: bool) -> Flat:
        def mean(array: Flat) -> None:
            self.given.append(array.size)
            group.all_reduce(array)

        result = self.reduction.all_reduce(vector.copy(), self.layout, mean)
        if commit:
            self.reduction.commit()
        return result

    def without_some(self, group: Group, vector: Flat, present: bool) -> Flat:
        """Reduce over the present members of three."""

        def mean(array: Flat) -> None:
            array *= np.float32(present)
            group.all_reduce(array, "sum")
            array /= 3

        result = self.reduction.all_reduce(vector.copy(), self.layout, mean)
        self.reduction.commit(present)
        return result.copy()

    def collectives(self) -> list[int]:
        return self.given

    def remembers(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return self.reduction.state(), self.reduction.shared()

    def restore(self, own: dict[str, Any], shared: dict[str, Any]) -> None:
        self.reduction.restore(own)
        self.reduction.restore_shared(shared)


class World:
    """A group of ``count`` members."""

    def __init__(
        self, count: int, name: str = "powersgd", *, layout: Layout = LAYOUT, engine: Any = None, **options: Any
    ) -> None:
        self.engine: Engine = ENGINES.create("simulated", engine or {})
        self.members = [
            self.engine.spawn(Member, name, options, layout, name=f"member {rank}") for rank in range(count)
        ]
        self.group = self.engine.group(self.members)

    def reduce(self, vectors: Any, **options: Any) -> Any:
        """Return what each member got in each step, shape (members, steps, n), of vectors of that shape."""
        refs = [m.reduce(self.group, *own, **options) for m, own in zip(self.members, vectors, strict=True)]
        return np.array(self.engine.get(refs))

    def memories(self) -> Any:
        return np.array([own["memory"] for own, _ in self.remembered()])

    def remembered(self) -> list[Any]:
        return self.engine.get([member.remembers() for member in self.members])


def vectors(members: int, steps: int, seed: int = 0, size: int = LAYOUT.size) -> Any:
    return np.random.default_rng(seed).standard_normal((members, steps, size), np.float32)


def to_the_bit(remembered: Any) -> list[dict[str, bytes]]:
    return [{name: value.tobytes() for name, value in state.items()} for state in remembered]


def same_for_all(results: Any) -> bool:
    return all(np.array_equal(results[0], other) for other in results[1:])


@pytest.mark.parametrize("options", [POWER, FORGETFUL, {"rank": 4}], ids=str)
@pytest.mark.parametrize("members", [2, 3, 5])
def test_a_reduction_equals_one_member_with_the_mean(members: int, options: dict[str, Any]) -> None:
    given = vectors(members, 6)
    many, one = World(members, **options).reduce(given), World(1, **options).reduce(given.mean(0, keepdims=True))
    assert same_for_all(many)
    np.testing.assert_allclose(many[0], one[0], atol=1e-4 * np.abs(one).max())
    assert np.abs(many[0] - given.mean(0)).max() > 0.1  # it did leave something out


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_error_feedback_loses_nothing_over_all_members(members: int, rank: int, seed: int) -> None:
    """Old residuals and vectors sum to the result times the number of members, plus the new residuals."""
    given, world = vectors(members, 4, seed), World(members, rank=rank)
    before = np.zeros((members, LAYOUT.size), np.float32)
    for step in range(4):
        result = world.reduce(given[:, step : step + 1])[0, 0]
        after = world.memories()
        np.testing.assert_allclose((given[:, step] + before).sum(0), members * result + after.sum(0), atol=3e-5)
        before = after
    plain = np.r_[240:260, 530:531]
    assert not before[:, plain].any()


def test_differences_between_members_do_not_accumulate() -> None:
    """Where data is parted unevenly, gradients differ by the same amount in every step; a death must not leave that behind."""
    members, steps = 4, 120
    differing = vectors(members, 1)
    differing -= differing.mean(0)
    world = World(members, **POWER)
    norms = []
    for begin in range(0, steps, 40):
        world.reduce(np.repeat(differing, 40, axis=1) + vectors(members, 40, begin))
        norms.append(np.linalg.norm(world.memories(), axis=1).max())
    assert norms[-1] < 1.5 * norms[0]


@settings(deadline=None, max_examples=15)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_low_rank_means_are_exact_up_to_rounding(members: int, rank: int, seed: int) -> None:
    rng, layout = np.random.default_rng(seed), Layout(("m", "b"), ((40, 25), (25,)))
    columns = rng.standard_normal((40, rank))
    own = [np.r_[(columns @ rng.standard_normal((rank, 25))).ravel(), rng.standard_normal(25)] for _ in range(members)]
    flat = np.array(own, np.float32)[:, None]
    result, mean = World(members, layout=layout, rank=rank).reduce(flat)[0, 0], flat.mean(0, np.float64)[0]
    np.testing.assert_allclose(result[1000:], mean[1000:], atol=1e-6)
    error = np.linalg.norm(result[:1000] - mean[:1000])
    assert error <= rounding_of_low_rank(flat[:, 0, :1000].reshape(-1, 40, 25).astype(float), layout, rank)


def rounding_of_low_rank(matrices: Any, layout: Layout, rank: int) -> float:
    """Return a bound of the error of P Q^T for members' matrices that share a column space of this rank, Frobenius norm.

    An error dP of P = M Q turns the basis by dP P^+, and the product loses dP (P^+ M). Other products and means round once.
    """
    tensor = next(tensors(layout, rank))
    q = initial_q(None, tensor, seed=7).astype(float)
    members, rows, columns = matrices.shape
    mean = matrices.mean(0)
    in_p = (columns + members + 1) * np.linalg.norm(matrices, axis=(1, 2)).mean() * np.linalg.norm(q)
    worse = np.linalg.norm(np.linalg.pinv(mean @ q.T) @ mean, 2)
    return float(np.finfo(np.float32).eps * (in_p * worse + (rows + rank + members) * np.linalg.norm(mean)))


def test_full_rank_equals_the_plain_mean_to_the_bit() -> None:
    given = vectors(3, 2)
    whole, full = World(3, "identity"), World(3, rank=1024)
    assert np.array_equal(whole.reduce(given), full.reduce(given))
    assert full.engine.get(full.members[0].collectives()) == [LAYOUT.size] * 2


def test_two_collectives_have_the_sizes_of_the_paper() -> None:
    world = World(2, **POWER)
    world.reduce(vectors(2, 3))
    p, q, plain = 2 * (12 + 30 + 8), 2 * (20 + 9 + 18), 20 + 1
    assert world.engine.get(world.members[0].collectives()) == [p + plain, q] * 3


def test_error_feedback_around_a_lossless_codec_changes_nothing() -> None:
    given = vectors(3, 3)
    fed = World(3, "error-feedback", codec="error-feedback")
    assert np.array_equal(fed.reduce(given), World(3, "identity").reduce(given))
    assert not fed.memories().any()


@pytest.mark.parametrize("options", [POWER, FORGETFUL], ids=str)
def test_a_step_without_commit_does_not_change_state(options: dict[str, Any]) -> None:
    given, (tried, straight) = vectors(3, 5), (World(3, **options) for _ in range(2))
    for world in (tried, straight):
        world.reduce(given[:, :2])
    tried.reduce(given[:, 2:4], commit=False)
    assert list(map(to_the_bit, tried.remembered())) == list(map(to_the_bit, straight.remembered()))
    assert np.array_equal(tried.reduce(given[:, 4:]), straight.reduce(given[:, 4:]))


@pytest.mark.parametrize("within", [0, 1])
def test_a_loss_during_a_collective_does_not_change_the_others(within: int) -> None:
    """Bytes take long; the third member dies in the middle of the first or of the second collective of the third step."""
    straight = World(3, **POWER)
    straight.reduce(vectors(3, 3)[:, :2])
    p, q = straight.engine.get(straight.members[0].collectives())[:2]
    elements = 2 * (p + q) + (p / 2 if within == 0 else p + q / 2)
    network = {"bandwidth_bytes_s": 4 * 4 / 3, "latency_s": 0.0}  # so an element takes a ring of three a second
    dead = World(3, engine={"network": network, "availability": {"crash": {"member 2": elements}}}, **POWER)
    for ref in [member.draw(dead.group, rank, 3) for rank, member in enumerate(dead.members)]:
        with pytest.raises(ActorLost):
            dead.engine.get(ref)
    for member, before in zip(dead.members[:2], straight.remembered()[:2], strict=True):
        assert len(dead.engine.get(member.collectives())) == 5 + within
        assert to_the_bit(dead.engine.get(member.remembers())) == to_the_bit(before)


def test_a_left_out_member_keeps_its_residual_and_gets_the_shared_state() -> None:
    given, world = vectors(4, 3), World(4, **POWER)
    world.reduce(given[:, :2])
    before, three = world.remembered(), World(3, **POWER)
    for member, (own, shared) in zip(three.members, [before[0], before[1], before[3]], strict=True):
        three.engine.get(member.restore(own, shared))
    refs = [
        member.without_some(world.group, vector, rank != 2)
        for rank, (member, vector) in enumerate(zip(world.members, given[:, 2], strict=True))
    ]
    results, after = np.array(world.engine.get(refs)), world.remembered()
    assert same_for_all(results)
    np.testing.assert_allclose(results[0], three.reduce(given[[0, 1, 3], 2:])[0, 0], atol=1e-5)
    assert np.array_equal(after[2][0]["memory"], before[2][0]["memory"])
    assert not np.array_equal(after[1][0]["memory"], before[1][0]["memory"])
    shared = [to_the_bit(both)[1] for both in after]
    assert all(other == shared[0] for other in shared)
    assert shared[0] != to_the_bit(before[0])[1]


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(ABLE), st.integers(0, LAYOUT.size - 1), st.sampled_from([np.nan, np.inf, -np.inf]))
def test_one_non_finite_element_is_seen_by_all_members(codec: str, place: int, bad: float) -> None:
    given = vectors(3, 1)
    given[1, 0, place] = bad
    results = World(3, codec).reduce(given, commit=False)
    assert not any(np.isfinite(result).all() for result in results)


def test_zero_gradients_stay_zero_and_later_ones_recover() -> None:
    given = vectors(2, 3)
    given[:, :2] = 0
    results = World(2, **POWER).reduce(given)
    assert not results[:, :2].any()
    assert np.array_equal(results[:, 2], World(2, **POWER).reduce(given[:, 2:])[:, 0])


def test_a_later_member_takes_the_shared_state() -> None:
    given, old = vectors(3, 4), World(3, **FORGETFUL)
    whole = old.reduce(given)
    begun = World(3, **FORGETFUL)
    begun.reduce(given[:, :2])
    shared = begun.remembered()[0][1]
    new = World(3, **FORGETFUL)
    new.engine.get([member.restore({}, shared) for member in new.members])
    assert np.array_equal(new.reduce(given[:, 2:]), whole[:, 2:])


@pytest.mark.parametrize("codec", [entry.name for entry in CODECS.entries()])
def test_codecs_without_a_reduction_are_rejected_with_the_list_of_others(codec: str) -> None:
    if codec in ABLE:
        CODECS.reduction(codec)
        return
    with pytest.raises(ConfigurationError, match=f"codec '{codec}'.*use 'error-feedback', 'identity' or 'powersgd'$"):
        CODECS.reduction(codec)


@pytest.mark.parametrize("options", [{"lossless": True}, {"codec": "sign"}])
def test_wrappers_of_codecs_without_a_reduction_are_rejected(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="codec 'error-feedback', as it is set, has no form for all-reduce"):
        CODECS.reduction("error-feedback", options)

"""Tests of aggregation rules: their properties, and the inputs that they reject."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import chimera
from chimera.core.errors import ConfigurationError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout
from chimera.training.aggregation.aggregation import AGGREGATIONS
from chimera.training.aggregation.krum import Krum
from chimera.training.messages.rejection import Rejected
from chimera.training.optimizers.optimizer import OptimizerSettings
from chimera.training.server.parameter_shard import ParameterShard

ROBUST: dict[str, dict[str, Any]] = {
    "median": {},
    "trimmed-mean": {"share": 0.34},
    "krum": {"attackers": 2},
    "multi-krum": {"name": "krum", "attackers": 2, "select": 3},
    "geometric-median": {},
}
HONEST, ATTACKERS, SIZE = 5, 2, 12
finite = st.floats(-1e3, 1e3, width=32)
wild = st.floats(-(2.0**120), 2.0**120, width=32)


def vectors(count: int, elements: st.SearchStrategy[float]) -> st.SearchStrategy[np.ndarray]:
    return arrays.arrays(np.float32, (count, SIZE), elements=elements)


def rule(name: str) -> Any:
    table = {"name": name, **ROBUST.get(name, {})}
    return AGGREGATIONS.create(table.pop("name"), table)


def aggregated(name: str, given: Any) -> Flat:
    made = rule(name)
    made.check(len(given))
    rows = Layout(("p",), ((len(given[0]),),)).rows
    return made.dense(list(given), np.full(len(given[0]), np.nan, np.float32), rows)  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", [*ROBUST, "mean"])
@given(vector=arrays.arrays(np.float32, SIZE, elements=finite))
@settings(max_examples=30, deadline=None)
def test_equal_vectors_are_their_own_aggregate(name: str, vector: Flat) -> None:
    np.testing.assert_allclose(aggregated(name, [vector] * 7), vector, rtol=1e-6)


@pytest.mark.parametrize("name", ROBUST)
@given(honest=vectors(HONEST, finite), others=vectors(ATTACKERS, wild))
@settings(max_examples=60, deadline=None)
def test_a_minority_moves_the_aggregate_by_a_bounded_distance(
    name: str, honest: np.ndarray, others: np.ndarray
) -> None:
    """Coordinate-wise rules stay in the range of the honest; the geometric median within a factor of their spread."""
    result = aggregated(name, [*others[:1], *honest, *others[1:]]).astype(np.float64)
    if name in ("median", "trimmed-mean"):
        assert (result >= honest.min(axis=0) * (1 - 1e-6 * np.sign(honest.min(axis=0)))).all()
        assert (result <= honest.max(axis=0) * (1 + 1e-6 * np.sign(honest.max(axis=0)))).all()
        return
    spread = max(np.linalg.norm(a - b) for a in honest.astype(np.float64) for b in honest)
    distance = np.linalg.norm(result - honest.mean(axis=0, dtype=np.float64))
    # Of the geometric median: 2 (1 - a) / (1 - 2 a) times the radius, where a is the attackers' share (RFA, section 3).
    assert distance <= 2 * HONEST / (HONEST - ATTACKERS) * spread + 1e-2


@pytest.mark.parametrize("name", [*ROBUST, "mean"])
@given(given=vectors(7, finite), order=st.permutations(range(7)))
@settings(max_examples=40, deadline=None)
def test_aggregation_does_not_depend_on_the_order_of_vectors(name: str, given: np.ndarray, order: list[int]) -> None:
    if "krum" in name:
        given = given + 7 * np.eye(7, SIZE, dtype=np.float32)  # two equal scores would be a matter of order
        scores = [Krum(attackers=2, select=k).chosen(list(given)) for k in (1, 2, 3, 4)]
        again = [Krum(attackers=2, select=k).chosen(list(given[order])) for k in (1, 2, 3, 4)]
        if any({order[i] for i in b} != set(a) for a, b in zip(scores, again, strict=True)):
            return  # a tie, but for rounding
    np.testing.assert_allclose(aggregated(name, given), aggregated(name, given[order]), rtol=1e-3, atol=1e-2)


@given(honest=vectors(HONEST, st.floats(-1, 1, width=32)), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_krum_selects_an_honest_vector(honest: np.ndarray, seed: int) -> None:
    places = np.random.default_rng(seed).permutation(7)
    far = 1e4 * (1 + np.arange(ATTACKERS))[:, None] + np.zeros((ATTACKERS, SIZE))
    given = np.concatenate([honest, far.astype(np.float32)])[places]
    (chosen,) = Krum(attackers=ATTACKERS).chosen(list(given))
    assert places[chosen] < HONEST
    assert np.array_equal(aggregated("krum", given), given[chosen])
    assert all(places[i] < HONEST for i in Krum(attackers=ATTACKERS, select=5).chosen(list(given)))


@pytest.mark.parametrize("seed", range(20))  # of one draw alone, another number of neighbours may choose the same
def test_krum_scores_match_the_paper(seed: int) -> None:
    given = np.random.default_rng(seed).standard_normal((9, SIZE)).astype(np.float32)
    scores = []
    for i, vector in enumerate(given):
        squares = sorted(float(((vector - other) ** 2).sum()) for j, other in enumerate(given) if j != i)
        scores.append(sum(squares[: 9 - 3 - 2]))
    assert Krum(attackers=3, select=4).chosen(list(given)) == sorted(np.argsort(scores)[:4].tolist())


@pytest.mark.parametrize("seed", range(4))
def test_the_geometric_median_minimizes_the_sum_of_distances(seed: int) -> None:
    given = np.random.default_rng(seed).standard_normal((6, 5)).astype(np.float32)
    given[0] *= 50

    def distances(point: np.ndarray) -> float:
        return float(np.linalg.norm(given.astype(np.float64) - point, axis=1).sum())

    best = scipy.optimize.minimize(
        distances, given.mean(axis=0, dtype=np.float64), method="BFGS", options={"gtol": 1e-8}
    )
    found = aggregated("geometric-median", given)
    assert distances(found) == pytest.approx(best.fun, rel=1e-6)
    np.testing.assert_allclose(found, best.x, atol=2e-3)


def test_rules_match_numpy() -> None:
    given = np.random.default_rng(0).standard_normal((10, 3000)).astype(np.float32)
    np.testing.assert_array_equal(aggregated("median", given), np.median(given, axis=0))
    made = AGGREGATIONS.create("trimmed-mean", {"share": 0.2})
    trimmed = made.dense(list(given), np.empty(3000, np.float32), Layout(("p",), ((3000,),)).rows)
    np.testing.assert_allclose(trimmed, np.sort(given, axis=0)[2:-2].mean(axis=0), rtol=1e-5, atol=1e-7)


def shard() -> ParameterShard:
    return ParameterShard(
        np.zeros(SIZE, np.float32), Layout(("p",), ((SIZE,),)), optimizer=OptimizerSettings("sgd", {"lr": 1.0})
    )


def message(value: float) -> Encoded:
    return Encoded("identity", SIZE, (np.full(SIZE, value, np.float32),))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["median", "geometric-median", "trimmed-mean"])
def test_non_finite_vectors_are_rejected_even_if_the_rule_would_mask_them(name: str, bad: float) -> None:
    one, other = shard(), shard()
    _, applied = one.update(*map(message, (1.0, 2.0, bad, 4.0)), Rejected(4, 0, "NaN"), aggregation=name)
    other.update(*map(message, (1.0, 2.0, 4.0)), aggregation=name)
    assert applied.gradients == 3
    assert len(applied.rejected) == 2
    assert one.weights().arrays[0].tobytes() == other.weights().arrays[0].tobytes()


@pytest.mark.parametrize("reached", [False, True])
@pytest.mark.parametrize("name", [*ROBUST, "mean"])
def test_aggregating_weights_equals_aggregating_updates(name: str, reached: bool) -> None:
    table = {"name": name, **ROBUST.get(name, {})}
    changes = np.random.default_rng(1).standard_normal((7, SIZE)).astype(np.float32)
    server = shard()
    given = [Encoded("identity", SIZE, (-each if reached else each,)) for each in changes]
    server.update(*given, aggregation=table, reached=reached)
    np.testing.assert_allclose(server.weights().arrays[0], -aggregated(name, changes), atol=1e-6)


def test_too_few_vectors_raise_a_one_line_error() -> None:
    with pytest.raises(ConfigurationError, match="attackers = 1 needs at least 5 vectors, but a round has 4") as caught:
        shard().update(*map(message, (1.0, 2.0, np.nan, 4.0, 5.0)), aggregation="krum")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("strategy", "more", "why"),
    [
        ({"aggregation": "medium"}, {}, "unknown aggregation 'medium'"),
        ({"aggregation": {"share": 0.1}}, {}, "needs a 'name'"),
        ({"aggregation": {"name": "trimmed-mean", "share": 0.5}}, {}, "above 0 and below 0.5"),
        ({"aggregation": {"name": "trimmed-mean", "share": 0.4}}, {}, "and none remains: set a smaller share"),
        ({"aggregation": {"name": "krum", "attackers": 1}}, {}, "at least 5 vectors, but a round has 4"),
        ({"aggregation": {"name": "krum", "attackers": 0, "select": 5}}, {}, "set select to at most 4"),
        ({"aggregation": {"name": "krum", "attackers": -1}}, {}, "attackers must be at least 0"),
        ({"aggregation": {"name": "krum", "attackers": 0}, "shards": 2}, {}, "set shards to 1"),
        ({"aggregation": "geometric-median", "shards": 2}, {}, "set shards to 1"),
        ({"aggregation": {"name": "geometric-median", "tolerance": 0.0}}, {}, "tolerance must be above 0"),
        ({"aggregation": "median", "weighted": True}, {}, "set weighted to false"),
        ({"aggregation": "touched", "send": "weights"}, {}, "set send to 'change'"),
        ({"aggregation": "median"}, {"codec": "rows"}, "another codec than 'rows'"),
        ({"aggregation": "krum", "fraction": 0.5}, {}, "but a round has 2"),
        (
            {"name": "parameter-server", "aggregation": {"name": "krum", "attackers": 0}, "quorum": 0.5},
            {},
            "a round has 2",
        ),
    ],
)
def test_invalid_aggregation_is_rejected_before_the_run(strategy: Any, more: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=why) as caught:
        chimera.Trainer("mlp", "digits", strategy={"name": "fed-avg", **strategy}, workers=4, out=tmp_path, **more)
    assert "\n" not in str(caught.value)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("strategy", "engine"),
    [
        *((name, "simulated") for name in ("fed-avg", "fed-nova", "local-sgd", "parameter-server", "scaffold")),
        ("fed-avg", "local"),
    ],
)
def test_rules_can_be_set_in_an_experiment_file(strategy: str, engine: str, tmp_path: Path) -> None:
    plain, robust = (
        chimera.train(
            "logistic-regression",
            "digits",
            strategy={"name": strategy, "aggregation": aggregation},
            engine=engine,
            workers=3,
            rounds=3,
            out=tmp_path / str(i),
        )
        for i, aggregation in enumerate(("mean", {"name": "trimmed-mean", "share": 0.3}))
    )
    assert robust.metrics["accuracy"] > 0.3
    assert not np.array_equal(plain.trained.parameters(), robust.trained.parameters())

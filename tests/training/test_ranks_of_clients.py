"""Adapters of different ranks: what a client trains and sends, and the mean of each rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import chimera
from chimera.core.errors import ConfigurationError
from chimera.core.low_rank import adapter_rank, rank_factors
from chimera.core.parameters import Layout
from chimera.strategies.fed_avg import FedAvg
from language_kit import MARKS, text, written_base
from security.private_worker_kit import RecordingEngine

pytestmark = MARKS

LAYOUT = Layout(("q.lora_A.default.weight", "q.lora_B.default.weight", "head.weight"), ((3, 5), (4, 3), (2,)))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return written_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def fit(folder: Path, base: str, **options: Any) -> tuple[chimera.Run, list[np.ndarray]]:
    """Train one round; return the run, and the change that each client sent, shape (P,) each."""
    table = {"name": "fed-avg", "local_steps": 3, **options}
    with RecordingEngine() as engine:
        run = chimera.train(
            model={"name": "huggingface", "task": "causal-lm", "path": base, "lora": {"r": 4, "targets": ["c_attn"]}},
            data={"name": "text-blocks", "path": text(folder.parent), "block": 16},
            engine=engine,
            workers=2,
            batch_size=8,
            rounds=1,
            optimizer={"name": "sgd", "lr": 0.5},
            strategy=table,
            out=folder,
        )
        answers = [value for call, value in engine.sent.values if call == "delta"]
    return run, [np.concatenate([array for message in answer for array in message.arrays]) for answer in answers]


def test_factors_are_those_of_rows_of_a_and_columns_of_b() -> None:
    factors = rank_factors(LAYOUT, [2.0, 3.0])
    a, b, head = np.split(factors, [15, 27])
    assert a.reshape(3, 5).tolist() == [[2.0] * 5, [3.0] * 5, [0.0] * 5]
    assert b.reshape(4, 3).tolist() == [[2.0, 3.0, 0.0]] * 4
    assert head.tolist() == [1.0, 1.0]
    assert adapter_rank(LAYOUT) == 3


@given(ranks=st.lists(st.integers(1, 3), min_size=1, max_size=5), seed=st.integers(0, 99))
def test_the_mean_of_weighed_changes_is_the_mean_over_the_clients_of_each_rank(ranks: list[int], seed: int) -> None:
    changes = np.random.default_rng(seed).standard_normal((len(ranks), LAYOUT.size))
    trained_by = [sum(rank > i for rank in ranks) for i in range(max(ranks))]
    shares = [[len(ranks) / trained_by[i] for i in range(rank)] for rank in ranks]
    masks = np.array([rank_factors(LAYOUT, [1.0] * rank) for rank in ranks])
    weighed = np.array([rank_factors(LAYOUT, own) for own in shares]) * changes
    counted = masks.sum(0)
    expected = np.divide((masks * changes).sum(0), counted, out=np.zeros(LAYOUT.size), where=counted > 0)
    np.testing.assert_allclose(weighed.mean(0), expected, atol=1e-6)


def test_clients_of_full_rank_have_the_same_bits_as_without_ranks(tmp_path: Path, base: str) -> None:
    plain, _ = fit(tmp_path / "plain", base)
    ranked, _ = fit(tmp_path / "ranked", base, ranks=[4])
    assert np.array_equal(plain.trained.parameters(), ranked.trained.parameters())


def test_a_rank_that_one_client_trains_has_its_whole_change(tmp_path: Path, base: str) -> None:
    """The client of full rank trains the same in both runs; its change of the ranks that it alone trains counts twice."""
    run, (weak, strong) = fit(tmp_path / "run", base, ranks=[1, 4])
    _, (_, alike) = fit(tmp_path / "alike", base)
    layout = run.trained.layout
    first = rank_factors(layout, [1.0]) != 0
    assert np.array_equal(strong, np.where(first, alike, 2 * alike))
    assert weak[first].any()
    assert not weak[~first].any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ranks": [2, 8]}, "ranks has 8, and the adapters of the model have rank 4"),
        ({"ranks": [0]}, "ranks must be at least 1"),
        ({"ranks": [2], "aggregation": "median"}, "aggregation = 'mean'"),
        ({"ranks": [2], "send": "weights"}, "send = 'change'"),
        ({"ranks": [2], "over_selection": 1.5}, "remove over_selection and deadline_s"),
    ],
)
def test_ranks_that_cannot_be_used_are_refused(tmp_path: Path, base: str, options: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        fit(tmp_path / "run", base, **options)


def test_a_model_without_adapters_is_refused() -> None:
    class Plain:
        layout = Layout(("weight",), ((2, 2),))

    with pytest.raises(ConfigurationError, match=r"the model has none: set \[model.lora\]"):
        FedAvg(ranks=[1]).keeps(Plain())

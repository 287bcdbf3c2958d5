"""Private federated runs with LoRA adapters of a small language model: epsilon, what leaves clients, and masked sums."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chimera
from chimera.core.message import Encoded
from chimera.privacy.noise import source
from chimera.strategies.strategy import STRATEGIES
from chimera.training.privacy.settings import Privacy
from language_kit import MARKS, text, written_base
from security.private_worker_kit import (
    RecordingEngine,
    Secrets,
    Sent,
    is_made_of,
    record_secrets,  # noqa: F401 - a fixture
)
from security.test_private_workers import MAY_LEAVE

pytestmark = MARKS

WORKERS, ROUNDS, CLIP, SEED = 3, 2, 0.05, 11
LORA = {"r": 4, "targets": ["c_attn"]}
TRAINED = 2 * 4 * (32 + 96)  # elements: two layers, each with A of shape (4, 32) and B of shape (96, 4)
FAMILY = sorted(entry.name for entry in STRATEGIES.entries() if entry.factory.private)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return written_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def fit(folder: Path, base: str, **options: Any) -> tuple[chimera.Run, Sent]:
    """Train adapters in virtual time; return the run, and what left its workers."""
    engine = RecordingEngine()
    given: dict[str, Any] = {
        "model": {"name": "huggingface", "task": "causal-lm", "path": base, "lora": LORA},
        "data": {"name": "text-blocks", "path": text(folder.parent, 1500), "block": 16},
        "engine": engine,
        "workers": WORKERS,
        "batch_size": 4,
        "rounds": ROUNDS,
        "evaluate_every": ROUNDS,
        "optimizer": {"name": "sgd", "lr": 0.5},
        "strategy": {"name": "fed-avg", "local_steps": 2},
        "seed": SEED,
        "out": folder,
    }
    with engine:
        return chimera.train(**{**given, **options}), engine.sent


def updates(sent: Sent) -> list[np.ndarray]:
    """Return the updates that left, one vector of shape (P,) for each client and round."""
    answers = [value for call, value in sent.values if call == "delta"]
    assert all(isinstance(message, Encoded) for answer in answers for message in answer)
    return [np.concatenate([array for message in answer for array in message.arrays]) for answer in answers]


def test_epsilon_is_that_of_opacus_for_the_same_steps(tmp_path: Path, base: str) -> None:
    """Two of three clients are in a round. Epsilon assumes that all are; the other value assumes a secret draw."""
    from opacus.accountants import RDPAccountant

    delta, noise = 1e-6, 1.3
    privacy = {"clip": CLIP, "noise": noise, "delta": delta}
    strategy = {"name": "fed-avg", "local_steps": 1, "fraction": 2 / 3}
    run, _ = fit(tmp_path / "run", base, privacy=privacy, strategy=strategy)

    def by_hand(sample_rate: float) -> float:
        accountant = RDPAccountant()
        for _ in range(ROUNDS):
            accountant.step(noise_multiplier=noise, sample_rate=sample_rate)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Optimal order is")
            return float(accountant.get_epsilon(delta))

    summary = json.loads((run.run_dir / "summary.json").read_text())
    assert summary["epsilon"] == pytest.approx(by_hand(1.0), rel=1e-6)
    assert summary["privacy"]["epsilon_sampled"] == pytest.approx(by_hand(2 / 3), rel=1e-6)
    assert run.history["epsilon"].dropna().tolist() == [pytest.approx(by_hand(1.0), rel=1e-6)]
    assert f"epsilon {by_hand(1.0):.3g} at delta 1e-06" in summary["privacy"]["guarantee"]


@pytest.mark.parametrize("masks", [False, True], ids=["plain", "masks"])
def test_only_the_clipped_and_noised_change_of_adapters_leaves_a_client(
    tmp_path: Path, base: str, secrets: Secrets, masks: bool
) -> None:
    """Seeded noise can be subtracted from what left: the rest is within the bound of the norm."""
    privacy = {"clip": CLIP, "noise": 1.0, "noise_seed": "run", "secure_aggregation": masks}
    run, sent = fit(tmp_path / "run", base, privacy=privacy)
    assert sent.kinds() - MAY_LEAVE == set()
    left = updates(sent)
    assert [len(update) for update in left] == [TRAINED] * WORKERS * ROUNDS
    assert not any(is_made_of(array, secrets) for array in sent.arrays())
    assert not any("train_loss" in row for row in run.rows)
    if masks:
        assert {update.dtype.kind for update in left} == {"u"}
        return
    deviation = Privacy(**privacy).deviation(WORKERS)
    assert all(np.linalg.norm(update) > 2 * CLIP for update in left)  # the noise is longer than the change
    for place, update in enumerate(left):
        norms = [norm_without_noise(update, deviation, place % WORKERS, step) for step in range(4 * ROUNDS)]
        assert min(norms) <= CLIP * (1 + 1e-4)


def norm_without_noise(update: np.ndarray, deviation: float, rank: int, step: int) -> float:
    noise = source("run", 1, SEED, rank, step).standard_normal(len(update), np.float32) * np.float32(deviation)
    return float(np.linalg.norm(update.astype(np.float64) - noise))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("noise", [0.0, 0.5], ids=["clipped", "noised"])
@pytest.mark.parametrize("strategy", FAMILY)
def test_masked_adapters_equal_unmasked_ones_up_to_rounding(
    tmp_path: Path, base: str, strategy: str, noise: float
) -> None:
    """The noise of both runs is the same. Only trained parameters travel, in both."""
    privacy = {"clip": CLIP, "noise": noise, "noise_seed": "run"}
    table = {"name": strategy, "local_steps": 2}
    plain, sent = fit(tmp_path / "plain", base, privacy=privacy, strategy=table, rounds=1)
    masked, hidden = fit(
        tmp_path / "masked", base, privacy={**privacy, "secure_aggregation": True}, strategy=table, rounds=1
    )
    assert [len(update) for update in (*updates(sent), *updates(hidden))] == [TRAINED] * WORKERS * 2
    assert plain.cost.bytes_up == 4 * TRAINED * WORKERS
    assert plain.cost.elements_down == masked.cost.elements_down == TRAINED * WORKERS
    step = Privacy(**privacy, secure_aggregation=True).code(WORKERS).step
    weights = plain.trained.parameters()
    rounding = 4 * np.finfo(np.float32).eps * np.abs(weights).max()  # of the weights, to float32
    assert np.abs(weights - masked.trained.parameters()).max() < 100 * step + rounding

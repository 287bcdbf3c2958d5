"""DiLoCo on a small GPT that a synchronous run has trained before, as in the paper."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chimera
from reproductions.conftest import Claim

TEXT = Path(os.environ.get("CHIMERA_DATA", "nowhere")) / "text" / "moby_dick.txt"
GPT = Path(__file__).parents[2] / "examples" / "parts" / "gpt.py"
STEPS, SEEDS = 1000, range(3)
SYNCHRONOUS = "parameter-server"
Figures = dict[str, tuple[float, float]]

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not TEXT.is_file(), reason="needs text/moby_dick.txt in $CHIMERA_DATA"),
]


def fit(folder: Path, model: Any, seed: int, strategy: Any, steps: int, decay: str) -> chimera.Run:
    """Train two workers on bytes of the text for a number of steps of each; the held-out part is the end of the text."""
    local = strategy["local_steps"] if isinstance(strategy, dict) else 1
    rounds = steps // local
    return chimera.train(
        model, {"name": "text-blocks", "path": str(TEXT), "block": 32, "test_fraction": 0.026}, strategy=strategy,
        engine="simulated", workers=2, batch_size=16, rounds=rounds, evaluate_every=rounds, log_every=rounds,
        checkpoint_every=rounds, snapshot_every=rounds, seed=seed, out=folder,
        optimizer={"name": "adamw", "lr": 3e-3, "schedule": {"decay": decay, "warm_up": 0.05}},
    )  # fmt: skip


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> Figures:
    """Return perplexity and bytes of each strategy after a synchronous run: means over the seeds."""
    strategies: dict[str, Any] = {
        "synchronous": SYNCHRONOUS,
        "50": {"name": "diloco", "local_steps": 50},
        "500": {"name": "diloco", "local_steps": 500},
    }

    def of(seed: int) -> list[tuple[float, float]]:
        folder = tmp_path_factory.mktemp("runs")
        small = {"name": f"{GPT}:gpt", "block": 32, "width": 48, "metrics": "perplexity"}
        first = fit(folder / "first", small, seed, SYNCHRONOUS, STEPS, "constant")
        found = []
        for name, strategy in strategies.items():
            model = chimera.TorchModel(copy.deepcopy(first.model), metrics="perplexity")  # a run changes its module
            run = fit(folder / name, model, 100 + seed, strategy, STEPS, "cosine")
            assert run.cost.samples == STEPS * 2 * 16
            found.append((run.metrics["perplexity"], run.cost.bytes_up + run.cost.bytes_down))
        return found

    means = np.mean([of(seed) for seed in SEEDS], axis=0)
    return dict(zip(strategies, map(tuple, means), strict=True))


def test_diloco_from_a_trained_model_is_as_good_as_synchronous_training(figures: Figures, claim: Claim) -> None:
    (synchronous, all_bytes), (diloco, sent), (rare, few) = (figures[name] for name in ("synchronous", "50", "500"))
    assert diloco < 1.03 * synchronous
    assert all_bytes / sent > 49
    assert all_bytes / few > 490
    claim(
        source="Douillard et al. 2023, section 3.1 and table 2",
        claim="From a model that was trained synchronously, DiLoCo with 50 local steps is within 3 % of the perplexity of "
        "synchronous training on as many tokens, with a fiftieth of its bytes",
        figure=f"perplexity {diloco:.2f} against {synchronous:.2f} (GPT of 70,000 parameters, mean of three seeds, 1,000 steps "
        f"after 1,000 synchronous ones); 1/{all_bytes / sent:.0f} of the bytes. With 500 local steps: {rare:.2f}, "
        f"1/{all_bytes / few:.0f} of the bytes",
    )

"""Reproductions of papers on redundant work: saved waiting time and saved bytes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chimera
from reproductions.conftest import Claim

pytestmark = pytest.mark.long

Learn = Callable[..., chimera.Run]


@pytest.fixture
def learn(tmp_path: Path) -> Learn:
    """Train on the digits in virtual time."""
    folders = itertools.count()

    def learn(strategy: Any, model: Any, **options: Any) -> chimera.Run:
        given = {"engine": "simulated", "seed": 1, "out": tmp_path / f"{next(folders)}"}
        return chimera.train(model, "digits", strategy=strategy, **{**given, **options})

    return learn


def test_gradient_coding_is_exact_and_as_fast_as_the_fastest_workers(learn: Learn, claim: Claim) -> None:
    workers, batch = 5, 8
    epoch = {
        "model": {"name": "mlp", "hidden": [16], "dropout": 0.2},
        "workers": workers,
        "batch_size": batch,
        "epochs": 2,
        "checkpoint_every": 10_000,  # a checkpoint waits for all workers
        "optimizer": {"name": "adam", "lr": 0.01},
        "engine": {"name": "simulated", "compute": {"seconds_per_sample": 1e-2}},
    }
    slow = [f"slow worker {rank} by 10 at step 0" for rank in (1, 3)]
    coded = {"name": "gradient-coding", "stragglers": len(slow)}
    undisturbed, slowed = learn(coded, **epoch), learn(coded, faults=slow, **epoch)
    waits = learn("parameter-server", faults=slow, **epoch)
    weights = waits.trained.parameters()
    apart = np.abs(slowed.trained.parameters() - weights).max() / np.abs(weights).max()
    assert apart < 1e-5
    assert slowed.cost.epochs == waits.cost.epochs >= 2
    pace = slowed.rows[-1]["seconds"] / undisturbed.rows[-1]["seconds"]
    waited = waits.rows[-1]["seconds"] / slowed.rows[-1]["seconds"]
    assert pace < 1.05
    assert waited > 2.5
    claim(
        source="Tandon et al. 2017, algorithm 2",
        claim="With 2 of 5 workers slowed down by ten, gradient coding has the exact gradient at the pace of the fastest three",
        figure=f"weights after two epochs equal to 1e-5; {pace:.2f} times as long as without slow workers; "
        f"waiting for all takes {waited:.1f} times as long",
    )


@pytest.mark.parametrize(("workers", "copies"), [(4, 2), (5, 3), (6, 2), (6, 3)])
def test_the_load_of_coded_computing_matches_theory(learn: Learn, claim: Claim, workers: int, copies: int) -> None:
    name, options = "coded-distributed-computing", {"model": "cnn", "workers": workers, "batch_size": 4, "rounds": 5}
    coded = learn({"name": name, "copies": copies}, **options)
    plain = learn({"name": name, "copies": copies, "coded": False}, **options)
    theory = (1 - copies / workers) / copies
    assert coded.figures["shuffle_load_in_theory"] == pytest.approx(theory)
    assert theory < coded.figures["shuffle_load"] < 1.1 * theory
    assert copies * theory < plain.figures["shuffle_load"] < 1.1 * copies * theory
    saved = plain.figures["shuffle_bytes"] / coded.figures["shuffle_bytes"]
    assert 0.9 * copies < saved < 1.1 * copies
    assert np.array_equal(coded.trained.parameters(), plain.trained.parameters())
    claim(
        source="Li et al. 2018, theorem 1",
        claim=f"Coded computing on {workers} workers with {copies} copies sends (1 - r/n)/r of all parts, "
        "r times less than the uncoded shuffle, a packet for several counted once",
        figure=f"{coded.figures['shuffle_load']:.3f}, in theory {theory:.3f}; {saved:.2f} times less; the same weights",
    )

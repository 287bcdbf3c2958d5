"""Reproductions of papers on model parallelism, on small data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import chimera
from chimera.data.dataset import Dataset
from cut_kit import Fit, fit_in, parameters, plain, sentences, transformer
from reproductions.conftest import Claim

pytestmark = pytest.mark.long

ONE_STAGE = {"name": "pipeline-parallel", "micro_batches": 1}
SGD = {"name": "sgd", "lr": 0.1}
TOLERANCE = 2e-6


@pytest.fixture
def fit(tmp_path: Path) -> Fit:
    """Train a network of three layers for 50 steps, in virtual time."""
    return fit_in(tmp_path, plain)


def difference(run: chimera.Run, whole: chimera.Run) -> float:
    return float(np.abs(parameters(run) - parameters(whole)).max())


def test_a_pipeline_equals_the_unsplit_network(fit: Fit, claim: Claim) -> None:
    """Huang et al. 2019, section 2.2: gradients of micro-batches add up to the gradient of the batch with any partition."""
    whole = fit(1, "single-worker")
    for schedule in ("gpipe", "1f1b"):
        assert difference(fit(3, {"name": "pipeline-parallel", "schedule": schedule}), whole) < TOLERANCE
    claim(
        source="Huang et al. 2019, section 2.2; Narayanan et al. 2019",
        claim="A pipeline's weights are those of the unsplit network trained alike, whatever the cut and the schedule",
        figure="after 50 steps of Adam over 3 stages no weight differs by more than 2e-6, with GPipe's schedule and with 1F1B",
    )


@pytest.mark.parametrize(("stages", "micro_batches"), [(4, 8)])
def test_the_bubble_matches_the_paper(fit: Fit, claim: Claim, stages: int, micro_batches: int) -> None:
    """Huang et al. 2019, section 2.3: a share of (K - 1) / (M + K - 1) of the time is bubble."""
    rng = np.random.default_rng(0)
    data = Dataset(rng.normal(size=(640, 64)).astype(np.float32), rng.integers(0, 64, 640))
    engine = {"name": "simulated", "compute": {"seconds_per_sample": 0.1}}
    equal = nn.Sequential(*(nn.Linear(64, 64) for _ in range(2 * stages)))
    strategy = {"name": "pipeline-parallel", "micro_batches": micro_batches}
    run = fit(stages, strategy, model=equal, data=data, engine=engine, batch_size=64, rounds=5, evaluate_every=5)
    theory = (stages - 1) / (micro_batches + stages - 1)
    assert run.figures["bubble"] == pytest.approx(theory, rel=0.1)
    claim(
        source="Huang et al. 2019, section 2.3",
        claim="Of the time of K stages a share of (K - 1) / (M + K - 1) is bubble, with M micro-batches",
        figure=f"{run.figures['bubble']:.3f} of the timeline against {theory:.3f}, with 4 stages and 8 micro-batches",
    )


def test_slices_equal_the_unsplit_network(fit: Fit, claim: Claim) -> None:
    """Shoeybi et al. 2019, section 3: splitting by columns, rows and heads needs sums only and equals the whole model."""
    options: dict[str, Any] = {"model": transformer, "data": sentences(), "optimizer": SGD}
    whole = fit(1, ONE_STAGE, **options)
    assert difference(fit(4, "tensor-parallel", **options), whole) < TOLERANCE
    assert difference(fit(3, "tensor-parallel"), fit(1, "single-worker")) < TOLERANCE
    claim(
        source="Shoeybi et al. 2019, section 3",
        claim="Layers cut by columns, rows, words and heads train to the weights of the unsplit network",
        figure="after 50 steps of a two-layer transformer with dropout over 4 workers no weight differs by more than 2e-6",
    )


def test_a_transformer_layer_needs_four_sums(fit: Fit, claim: Claim) -> None:
    """Shoeybi et al. 2019, section 3, figure 4: two all-reduces forward and two back, each of batch x length x width."""
    options: dict[str, Any] = {"data": sentences(), "optimizer": SGD, "rounds": 10, "batch_size": 8}
    sums = [
        fit(2, "tensor-parallel", model=lambda layers=layers: transformer(layers), **options).cost.elements_up
        for layers in (1, 2)
    ]
    of_one = (sums[1] - sums[0]) / (2 * 10)  # a worker and step
    assert of_one == 4 * 8 * 7 * 16
    claim(
        source="Shoeybi et al. 2019, section 3, figure 4",
        claim="A layer of a transformer takes two all-reduces forward and two back",
        figure="4 x 8 x 7 x 16 numbers are summed for one more layer of width 16, with batches of 8 sentences of 7 words",
    )


@pytest.mark.parametrize("head", [None, 4])
def test_split_learning_equals_the_unsplit_network(fit: Fit, claim: Claim, head: int | None) -> None:
    """Gupta and Raskar 2018, section 3: what clients and server train is what would be trained with all data in one place."""
    run = fit(3, {"name": "split-learning", "head": head})
    assert difference(run, fit(1, "single-worker")) < TOLERANCE
    claim(
        source="Gupta and Raskar 2018, section 3" if head is None else "Vepakomma et al. 2018, section 2 (u-shaped)",
        claim="Clients and a server train the network that would be trained with all data in one place"
        + ("" if head is None else ", also where labels stay with the clients"),
        figure="after 50 batches of 3 clients in turn no weight differs by more than 2e-6",
    )

"""DiLoCo: as accurate as synchronous training, with a fiftieth of its traffic or less; on the digits, from the same samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import chimera
from reproductions.conftest import Claim

STEPS, LOCAL_STEPS, SEEDS = 2000, 50, range(3)
INNER = {"name": "adamw", "lr": 0.001}
DILOCO = {"name": "diloco", "local_steps": LOCAL_STEPS}
STREAMING = {**DILOCO, "name": "streaming-diloco", "fragments": 5, "overlap": 5, "alpha": 0.5}
THREE_BITS = {"name": "qsgd", "levels": 3, "block": 1024}
QUANTIZED = {**THREE_BITS, "downlink": {"name": "delta", "codec": THREE_BITS}}
Learn = Callable[..., tuple[float, float]]

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def learn(tmp_path_factory: pytest.TempPathFactory) -> Learn:
    """Train four workers on the digits; return accuracy and bytes, as means over the seeds."""

    def once(strategy: Any, seed: int, **options: Any) -> tuple[float, float]:
        run = chimera.train(
            {"name": "mlp", "hidden": [128]},
            "digits",
            engine="simulated",
            workers=4,
            batch_size=16,
            strategy=strategy,
            seed=seed,
            snapshot_every=STEPS,
            optimizer=INNER,
            out=tmp_path_factory.mktemp("run"),
            **{"evaluate_every": options["rounds"], "log_every": options["rounds"], **options},
        )
        assert run.cost.samples == STEPS * 4 * 16
        return run.metrics["accuracy"], run.cost.bytes_up + run.cost.bytes_down

    def learn(strategy: Any, **options: Any) -> tuple[float, float]:
        accuracy, sent = np.mean([once(strategy, seed, **options) for seed in SEEDS], axis=0)
        return float(accuracy), float(sent)

    return learn


@pytest.fixture(scope="module")
def synchronous(learn: Learn) -> tuple[float, float]:
    return learn("parameter-server", rounds=STEPS)


@pytest.mark.parametrize(
    ("strategy", "codec", "times", "source", "name"),
    [
        (DILOCO, "identity", 49.9, "Douillard et al. 2023, table 2", "DiLoCo with 50 local steps"),
        (DILOCO, QUANTIZED, 400, "Douillard et al. 2025, section 4", "DiLoCo with 50 local steps and 3 bits"),
        (STREAMING, QUANTIZED, 400, "Douillard et al. 2025, section 4", "Streaming DiLoCo with overlap and 3 bits"),
    ],
    ids=["diloco", "few bits", "streaming"],
)
def test_it_is_as_good_as_synchronous_training_for_a_fraction_of_the_traffic(
    learn: Learn,
    synchronous: tuple[float, float],
    claim: Claim,
    strategy: Any,
    codec: Any,
    times: float,
    source: str,
    name: str,
) -> None:
    rounds = STEPS // LOCAL_STEPS * strategy.get("fragments", 1)
    accuracy, sent = learn(strategy, codec=codec, rounds=rounds)
    assert accuracy > synchronous[0] - 0.01
    assert synchronous[1] / sent > times
    claim(
        source=source,
        claim=f"{name} is within a point of synchronous training from the same samples, at a fraction of its traffic",
        figure=f"accuracy {accuracy:.1%} against {synchronous[0]:.1%}; 1/{synchronous[1] / sent:.0f} of the bytes up and down",
    )

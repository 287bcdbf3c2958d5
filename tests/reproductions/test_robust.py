"""Published claims about robust aggregation against attackers, on the digits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import chimera
from reproductions.conftest import Claim

pytestmark = pytest.mark.long

WORKERS, ATTACKERS = 10, 2
RULES: dict[str, Any] = {
    "median": "median",
    "trimmed-mean": {"name": "trimmed-mean", "share": ATTACKERS / WORKERS},
    "krum": {"name": "krum", "attackers": ATTACKERS},
    "krum (5 of 10)": {"name": "krum", "attackers": ATTACKERS, "select": 5},
    "geometric-median": "geometric-median",
}
Learn = Callable[..., float]


@pytest.fixture
def learn(tmp_path: Path) -> Learn:
    """Train on the digits in virtual time with a rule and an attack, and return the accuracy."""

    def learn(rule: Any, attack: str = "", model: Any = "logistic-regression", attackers: int = ATTACKERS) -> float:
        run = chimera.train(
            model,
            "digits",
            engine="simulated",
            workers=WORKERS,
            batch_size=32,
            strategy={"name": "fed-avg", "local_steps": 5, "aggregation": rule},
            optimizer={"name": "sgd", "lr": 0.1},
            rounds=30,
            evaluate_every=30,
            faults=[f"{attack.replace('#', f'worker {i}')} at step 0" for i in range(attackers)] if attack else [],
            out=tmp_path / f"{rule}-{attack}".replace("/", ""),
        )
        return run.metrics["accuracy"]

    return learn


@pytest.mark.parametrize("attack", ["sign flip # by 4", "noise #"], ids=["sign flip", "noise"])
def test_robust_rules_withstand_attackers_that_break_the_mean(learn: Learn, claim: Claim, attack: str) -> None:
    honest, broken = learn("mean"), learn("mean", attack)
    withstood = {name: learn(rule, attack) for name, rule in RULES.items()}
    assert honest > 0.9
    assert broken < 0.5
    assert min(withstood.values()) > honest - 0.02
    sent = "minus four times their change" if "flip" in attack else "normal noise"
    claim(
        source="Blanchard et al. 2017, section 6; Yin et al. 2018, section 7; Pillutla et al. 2022",
        claim=f"Robust rules tolerate 2 of 10 attackers that send {sent}, which breaks the mean",
        figure=f"accuracy {broken:.0%} with the mean, {honest:.0%} without attackers; "
        + ", ".join(f"{accuracy:.0%} with {name}" for name, accuracy in withstood.items()),
    )


def test_a_median_loses_less_to_flipped_labels_than_the_mean(learn: Learn, claim: Claim) -> None:
    network = {"name": "mlp", "hidden": [32]}
    honest, mean, median = (
        learn(rule, attack, network, attackers=3)
        for rule, attack in (("mean", ""), ("mean", "label flip #"), ("median", "label flip #"))
    )
    assert honest - median < 0.03
    assert honest - mean > 2 * (honest - median)
    claim(
        source="Yin et al. 2018, section 7",
        claim="If 3 of 10 workers train on flipped labels, the median loses less than half as much as the mean",
        figure=f"accuracy {median:.0%} against {mean:.0%}; {honest:.0%} without attackers",
    )

"""Published claims about federated strategies, each with its paper, on small data."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chimera
from chimera.data.dataset import Dataset
from chimera.data.split import Split
from reproductions.conftest import Claim

pytestmark = pytest.mark.long

SEEDS = range(3)
SETTING = "digits, Dirichlet 0.1, mean of three seeds, after 30 rounds"
SGD = {"name": "sgd", "lr": 0.1}
DIRICHLET = {"name": "dirichlet", "alpha": 0.1}
Learn = Callable[..., list[chimera.Run]]


@pytest.fixture(scope="module")
def learn(tmp_path_factory: pytest.TempPathFactory) -> Learn:
    """Train a small network on the digits, once for each seed, in virtual time, by workers with few labels each."""
    tmp_path = tmp_path_factory.mktemp("runs")

    known: dict[str, list[chimera.Run]] = {}

    def learn(name: str, options: dict[str, Any], seeds: Sequence[int] = SEEDS, **settings: Any) -> list[chimera.Run]:
        key = repr((name, options, settings.get("optimizer"), settings.keys()))
        if key not in known:
            known[key] = fresh(name, options, seeds, **settings)
        return known[key]

    def fresh(name: str, options: dict[str, Any], seeds: Sequence[int], **settings: Any) -> list[chimera.Run]:
        given = {
            "model": {"name": "mlp", "hidden": [32]},
            "data": "digits",
            "engine": "simulated",
            "workers": 20,
            "batch_size": 10,
            "partition": DIRICHLET,
            "rounds": 30,
            "log_every": 30,
            "evaluate_every": 2,
            "checkpoint_every": 30,
            "optimizer": SGD,
        }
        runs = []
        for seed in seeds:
            own = {"seed": seed, "out": tmp_path / str(len(list(tmp_path.iterdir())))}
            strategy = {"name": name, **options, **({} if name == "local-sgd" else {"seed": seed})}
            runs.append(chimera.train(strategy=strategy, **{**given, **own, **settings}))
        return runs

    return learn


def accuracy(runs: list[chimera.Run]) -> float:
    """Return the mean accuracy of the last ten rounds, over all seeds."""
    return float(np.mean([[row["accuracy"] for row in run.rows if "accuracy" in row][-5:] for run in runs]))


MNIST = Path(os.environ.get("CHIMERA_DATA", "data")) / "mnist"


@pytest.mark.long
@pytest.mark.skipif(not MNIST.is_dir(), reason="needs MNIST under CHIMERA_DATA")
def test_fed_avg_takes_as_many_rounds_as_in_its_paper_and_fed_sgd_several_times_more(
    learn: Learn, claim: Claim
) -> None:
    """McMahan et al. 2017, table 1: 2NN, E = 1, B = 10, C = 0.1, IID: 97 % on MNIST in 87 rounds; with B = infinity in 1474."""
    settings = {
        "model": {"name": "mlp", "hidden": [200, 200], "activation": "relu"},
        "data": "mnist",
        "partition": "contiguous",  # the samples are in random order, and each worker has its own 600
        "workers": 100,
        "seeds": [0],
    }
    (averaged,) = learn(
        "fed-avg",
        {"local_epochs": 1, "fraction": 0.1, "weighted": True, "send": "weights"},
        rounds=130,
        target={"accuracy": 0.97},
        **settings,
    )
    assert averaged.stopped_by == "target"
    rounds = averaged.cost.rounds
    assert 87 / 1.5 <= rounds <= 87 * 1.5
    one_step = {"local_steps": 1, "fraction": 0.1}
    (whole,) = learn("fed-avg", one_step, optimizer={**SGD, "lr": 0.5}, rounds=3 * rounds, batch_size=600, **settings)
    assert whole.metrics["accuracy"] < 0.97
    claim(
        source="McMahan et al. 2017, table 1",
        claim="FedAvg (2NN, E = 1, B = 10, C = 0.1, IID) reaches 97 % on MNIST in 87 rounds; FedSGD takes several times more",
        figure=f"{rounds} rounds; FedSGD has {whole.metrics['accuracy']:.1%} after {3 * rounds}",
    )


WORK = {"local_epochs": 5, "fraction": 0.5, "weighted": True}


@pytest.mark.parametrize("mu", [0.0, 0.1])
def test_fed_prox_takes_the_work_of_stragglers_that_fed_avg_drops(learn: Learn, claim: Claim, mu: float) -> None:
    """Li et al. 2020, section 5.2 and figure 1: with 90 % of stragglers FedProx is far ahead."""
    many = {**WORK, "stragglers": 0.9}
    dropped, taken = learn("fed-avg", many), learn("fed-prox", {**many, "mu": mu})
    assert accuracy(taken) > accuracy(dropped) + 0.2
    assert accuracy(taken) > 0.75
    claim(
        source="Li et al. 2020 (FedProx), section 5.2 and figure 1",
        claim=f"If 90 % of the workers complete only a part of their work, FedProx (mu = {mu}) is far ahead of FedAvg",
        figure=f"accuracy {accuracy(taken):.0%} and {accuracy(dropped):.0%}, {SETTING}",
    )


@pytest.mark.long
def test_fed_prox_with_stragglers_is_hardly_worse_than_without(learn: Learn, claim: Claim) -> None:
    """The same figure: its rows are similar for 0 and 90 % of stragglers."""
    taken, whole = (learn("fed-prox", {**WORK, "stragglers": share}) for share in (0.9, 0.0))
    assert accuracy(taken) > accuracy(whole) - 0.03
    claim(
        source="Li et al. 2020 (FedProx), figure 1",
        claim="90 % of stragglers hardly affect FedProx",
        figure=f"accuracy {accuracy(taken):.0%} and, without stragglers, {accuracy(whole):.0%}, {SETTING}",
    )


@pytest.mark.long
def test_scaffold_does_not_drift_as_fed_avg_does(learn: Learn, claim: Claim) -> None:
    """Karimireddy et al. 2020, section 7 and table 3: many local steps make FedAvg drift on skewed data, not SCAFFOLD."""
    work, steps = {"local_steps": 50}, {**SGD, "lr": 0.05}
    averaged, controlled = (learn(name, work, optimizer=steps, workers=10) for name in ("fed-avg", "scaffold"))
    assert accuracy(controlled) > accuracy(averaged) + 0.05
    assert accuracy(controlled) > 0.92
    # It reaches FedAvg's final accuracy in several times fewer rounds.
    reached = [_rounds_to(run, accuracy(averaged)) for run in controlled]
    assert np.mean(reached) < 30 / 2
    claim(
        source="Karimireddy et al. 2020, section 7 and table 3",
        claim="With 50 local steps on heterogeneous data, FedAvg drifts, and SCAFFOLD does not",
        figure=f"accuracy {accuracy(controlled):.0%} and {accuracy(averaged):.0%}, {SETTING}; "
        f"SCAFFOLD reaches this after {np.mean(reached):.0f} of 30 rounds",
    )


@pytest.mark.long
def test_scaffold_with_stragglers_is_ahead_of_fed_avg(learn: Learn, claim: Claim) -> None:
    """Both at once: heterogeneous data (Karimireddy et al. 2020), and partial work of most workers (Li et al. 2020)."""
    many = {**WORK, "stragglers": 0.9}
    averaged, controlled = (learn(name, many) for name in ("fed-avg", "scaffold"))
    assert accuracy(controlled) > accuracy(averaged) + 0.2
    assert accuracy(controlled) > 0.88
    claim(
        source="Karimireddy et al. 2020, section 7; stragglers as in Li et al. 2020 (FedProx), section 5.2",
        claim="If 90 % of the workers complete only a part of their work, SCAFFOLD is also far ahead of FedAvg",
        figure=f"accuracy {accuracy(controlled):.0%} and {accuracy(averaged):.0%}, {SETTING}",
    )


def _rounds_to(run: chimera.Run, level: float) -> int:
    return int(next(row["round"] for row in run.rows if row.get("accuracy", 0) >= level))


def test_fed_nova_comes_to_the_optimum_of_all_where_fed_avg_comes_to_another(learn: Learn, claim: Claim) -> None:
    """Wang et al. 2020, theorem 1: workers with more steps pull FedAvg to their own optimum; FedNova weights by data alone."""
    rng = np.random.default_rng(0)
    sizes = [200, 40, 40, 40]
    inputs = rng.normal(size=(sum(sizes), 3))
    truth = np.repeat(rng.normal(size=(4, 3)) * 2, sizes, axis=0)
    targets = (inputs * truth).sum(axis=1)
    best = np.linalg.lstsq(np.c_[inputs, np.ones(len(inputs))], targets, rcond=None)[0]
    data = Dataset(inputs.astype(np.float32), targets.astype(np.float32))
    cuts = np.cumsum(sizes)[:-1]

    def parts(labels: Any, world_size: int, generator: Any) -> list[np.ndarray]:
        return np.split(np.arange(sum(sizes)), cuts)

    off = {}
    for name in ("fed-avg", "fed-nova"):
        run = learn(
            name,
            {"local_epochs": 1, "weighted": True},
            optimizer={**SGD, "lr": 0.005},
            model="linear-regression",
            data=Split(data, data),
            partition=parts,
            workers=4,
            batch_size=20,
            rounds=400,
            evaluate_every=400,
            log_every=400,
            checkpoint_every=400,
            seeds=[0],
        )[0]
        off[name] = np.linalg.norm(run.trained.parameters() - best) / np.linalg.norm(best)
    assert off["fed-nova"] < 0.3 * off["fed-avg"]
    assert off["fed-avg"] > 0.1
    claim(
        source="Wang et al. 2020, theorem 1",
        claim="With unequal numbers of steps, FedNova converges near the global optimum, and FedAvg to another point",
        figure=f"relative distance {off['fed-nova']:.2f} and {off['fed-avg']:.2f}",
    )


def test_momentum_on_the_servers_helps_where_few_take_part(learn: Learn, claim: Claim) -> None:
    """Hsu et al. 2019, figure 5: with skewed labels and a small fraction of clients, FedAvgM is ahead of FedAvg."""
    work, steps = {"local_epochs": 1, "fraction": 0.2}, {**SGD, "lr": 0.05}
    plain = learn("fed-avg", work, optimizer=steps)
    moving = learn("fed-avg-m", {**work, "server_optimizer": {"momentum": 0.7}}, optimizer=steps)
    assert accuracy(moving) > accuracy(plain) + 0.05
    claim(
        source="Hsu et al. 2019, figure 5",
        claim="With skewed labels and a fifth of the workers a round, FedAvgM is ahead of FedAvg",
        figure=f"accuracy {accuracy(moving):.0%} and {accuracy(plain):.0%}, {SETTING}",
    )


@pytest.mark.long
@pytest.mark.parametrize("name", ["fed-adam", "fed-yogi", "fed-adagrad"])
def test_adaptive_servers_learn_faster(learn: Learn, claim: Claim, name: str) -> None:
    """Reddi et al. 2021, table 1 and figure 1: adaptive servers are ahead of FedAvg's in the same rounds."""
    work, steps = {"local_epochs": 1, "fraction": 0.2}, {**SGD, "lr": 0.02}
    plain, adaptive = (learn(each, work, optimizer=steps) for each in ("fed-avg", name))
    assert accuracy(adaptive) > accuracy(plain) + 0.05
    claim(
        source="Reddi et al. 2021, table 1",
        claim=f"With {name} on the servers, training is ahead of FedAvg in the same number of rounds",
        figure=f"accuracy {accuracy(adaptive):.0%} and {accuracy(plain):.0%}, {SETTING}",
    )

"""Published claims about decentralized training, each with its paper, on small data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import chimera
from chimera.data.dataset import Dataset
from chimera.data.split import Split
from chimera.training.artifacts.checkpoint import Checkpoints
from reproductions.conftest import Claim

pytestmark = pytest.mark.long

WORKERS = 8
TOP_K = {"name": "top-k", "ratio": 0.02}
Learn = Callable[..., chimera.Run]


@pytest.fixture(scope="module")
def learn(tmp_path_factory: pytest.TempPathFactory) -> Learn:
    """Train a small network on the digits with eight workers, in virtual time; cache the runs."""
    tmp_path, known = tmp_path_factory.mktemp("runs"), dict[str, chimera.Run]()

    def learn(strategy: Any, **options: Any) -> chimera.Run:
        given = {
            "model": {"name": "mlp", "hidden": [32]},
            "data": "digits",
            "engine": "simulated",
            "workers": WORKERS,
            "batch_size": 8,
            "optimizer": {"name": "sgd", "lr": 0.2},
            "epochs": 10,
            "seed": 1,
            "out": tmp_path / str(len(list(tmp_path.iterdir()))),
        }
        key = repr((strategy, sorted(options.items())))
        if key not in known or "data" in options:
            known[key] = chimera.train(strategy=strategy, **{**given, **options})
        return known[key]

    return learn


def distances(run: chimera.Run) -> list[float]:
    return [row["consensus_distance"] for row in run.rows if "consensus_distance" in row]


def accuracy(run: chimera.Run) -> str:
    return f"{run.metrics['accuracy']:.1%}"


def test_d_psgd_on_a_ring_learns_as_all_reduce_does(learn: Learn, claim: Claim) -> None:
    """Lian et al. 2017, corollary 2 and figure 2: the same rate per epoch, with two neighbours in place of all."""
    reduced, mixed = learn("all-reduce"), learn("d-psgd")
    assert reduced.metrics["accuracy"] > 0.92
    assert mixed.metrics["accuracy"] > reduced.metrics["accuracy"] - 0.01
    # The distance of the copies stays bounded, and is of the order of the learning rate (lemma 3 of the paper).
    assert max(distances(mixed)[5:]) < 2 * min(distances(mixed)[:5])
    careful = learn("d-psgd", optimizer={"name": "sgd", "lr": 0.02})
    ratio = np.mean(distances(mixed)) / np.mean(distances(careful))
    assert 5 < ratio < 20
    claim(
        source="Lian et al. 2017, corollary 2 and figure 2",
        claim="D-PSGD on a ring of 8 trains in as many epochs as all-reduce",
        figure=f"accuracy {accuracy(mixed)} and {accuracy(reduced)} after 10 epochs",
    )
    claim(
        source="Lian et al. 2017, lemma 3",
        claim="The consensus distance of D-PSGD stays bounded, in proportion to the learning rate",
        figure=f"{ratio:.1f} times the distance at 10 times the rate",
    )


def test_copies_come_together_as_the_learning_rate_decays(learn: Learn, claim: Claim) -> None:
    """Nedic and Olshevsky 2015, lemma 1: with steps that decay to zero, all models converge to one."""
    run = learn("d-psgd", optimizer={"name": "adagrad", "lr": 0.05, "lr_decay": 0.05})
    assert distances(run)[-1] < 0.1 * distances(run)[0]
    assert run.metrics["accuracy"] > 0.85
    claim(
        source="Nedic and Olshevsky 2015, lemma 1",
        claim="With steps that decay to zero, the copies of D-PSGD converge to one model",
        figure=f"consensus distance decreases to {distances(run)[-1] / distances(run)[0]:.1%} of the first",
    )


def test_ad_psgd_does_not_wait_for_a_slow_worker(learn: Learn, claim: Claim) -> None:
    """Lian et al. 2018, figure 4: with one worker slowed down by ten, as accurate in a fraction of the time."""
    slow = {"seconds_per_call": 1e-5, "seconds_per_sample": 1e-3, "slow": {"worker 3": 10.0}}
    engine = {"name": "simulated", "compute": slow}
    waiting, run = learn("d-psgd", engine=engine), learn("ad-psgd", engine=engine)
    assert run.cost.seconds < waiting.cost.seconds / 3
    assert run.metrics["accuracy"] > waiting.metrics["accuracy"] - 0.02
    claim(
        source="Lian et al. 2018, figure 4",
        claim="With one of 8 workers slowed down by ten, AD-PSGD is as accurate as D-PSGD in a fraction of the time",
        figure=f"{waiting.cost.seconds / run.cost.seconds:.1f} times as fast; accuracy {accuracy(run)} and {accuracy(waiting)}",
    )


@pytest.mark.parametrize(
    ("given", "short"),
    [({}, 0.015), pytest.param({"partition": "by-label", "epochs": 15}, 0.04, marks=pytest.mark.long)],
    ids=["iid", "by label"],
)
def test_choco_comes_to_one_model_where_naive_compressed_gossip_does_not(
    learn: Learn, claim: Claim, given: dict[str, Any], short: float
) -> None:
    """Koloskova et al. 2019, figures 2 and 3: 2 % of each vector suffices for CHOCO, but breaks gossip that sends models."""
    whole = learn("d-psgd", **given)
    naive = learn("d-psgd", codec=TOP_K, **given)
    choco = learn("choco-sgd", codec=TOP_K, **given)
    assert naive.metrics["accuracy"] < 0.5
    assert choco.metrics["accuracy"] > whole.metrics["accuracy"] - short
    assert choco.cost.bits_per_element_up is not None
    assert choco.cost.bits_per_element_up < 1
    assert distances(choco)[-1] < max(distances(choco))  # and its copies converge
    claim(
        source="Koloskova et al. 2019, figures 2 and 3",
        claim=f"2 % of each vector suffices for CHOCO-SGD but breaks naive gossip ({given.get('partition', 'iid')} data)",
        figure=f"accuracy {accuracy(choco)} and {accuracy(naive)}; {accuracy(whole)} with whole vectors",
    )


def least_squares(rows: int, features: int = 4) -> tuple[Split, np.ndarray]:
    """Return data whose part at each worker has a different solution, and the solution of all data, bias last."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(WORKERS * rows, features)) * np.repeat(rng.uniform(0.5, 1.5, WORKERS), rows)[:, None]
    own = np.repeat(rng.normal(size=(WORKERS, features)) * 3, rows, axis=0)
    targets = (inputs * own).sum(axis=1)
    best = np.linalg.lstsq(np.c_[inputs, np.ones(len(inputs))], targets, rcond=None)[0]
    data = Dataset(inputs.astype(np.float32), targets.astype(np.float32))
    return Split(data, data), best


def test_gradient_tracking_is_exact_where_d_psgd_with_a_constant_step_is_not(learn: Learn, claim: Claim) -> None:
    """Nedic et al. 2017, theorem 3.14: DIGing reaches the optimum at a constant step, for any data of each worker."""
    rows = 16
    data, best = least_squares(rows)
    off = {}
    for strategy in ("d-psgd", "gradient-tracking"):
        run = learn(
            strategy,
            model="linear-regression",
            data=data,
            partition="contiguous",
            batch_size=rows,
            optimizer={"name": "sgd", "lr": 0.05},
            epochs=None,
            rounds=400,
            evaluate_every=400,
        )
        saved = Checkpoints(str(run.run_dir / "checkpoints")).read_last()
        assert saved is not None
        models = np.stack([held["weights"] for held in saved["cluster"]["replicas"].values()])
        off[strategy] = np.linalg.norm(models - best, axis=1).max() / np.linalg.norm(best)
    assert off["gradient-tracking"] < 1e-4
    assert off["d-psgd"] > 0.02
    claim(
        source="Nedic et al. 2017, theorem 3.14",
        claim="Gradient tracking (DIGing) reaches the optimum at a constant step, for any data of each worker; D-PSGD does not",
        figure=f"relative distance below 1e-4 against {off['d-psgd']:.2f}",
    )

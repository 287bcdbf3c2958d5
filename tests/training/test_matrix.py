"""What practitioners bring, on strategies and engines: equal to one worker where the mathematics says so, and resumable.

The models and data are in `matrix_subjects`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chimera
from chimera.engines.local.engine import Local
from training.matrix_subjects import SUBJECTS, StoppedError, stopped_after

ROUNDS = 5
NEEDS = {"bert": "transformers.models.bert.modeling_bert", "parquet": "pyarrow", "residual-network": "PIL"}
STRATEGIES: dict[str, dict[str, Any]] = {
    "parameter-server": {},
    "all-reduce": {},
    "fed-avg": {"local_steps": 2},
    "d-psgd": {},
    "diloco": {"local_steps": 2},
    "async-parameter-server": {},
}
SAME_AS_ONE_WORKER: dict[str, dict[str, Any]] = {
    "parameter-server": {},
    "all-reduce": {},
    "fed-avg": {"local_steps": 1},
    "diloco": {"local_steps": 1, "server_optimizer": {"name": "sgd", "lr": 1.0}},
}


def installed(module: str) -> bool:
    return importlib.util.find_spec(module.partition(".")[0]) is not None


@pytest.fixture(scope="module")
def local() -> Iterator[Callable[[], Local]]:
    """Return a local engine, a new one after every 15 runs, since an engine has at most 255 actors in its life."""
    opened: list[Local] = []

    def engine() -> Local:
        nonlocal uses
        if uses % 15 == 0:
            while opened:
                opened.pop().close()
            opened.append(Local(preload=["torch", *filter(installed, NEEDS.values())]))
        uses += 1
        return opened[0]

    uses = 0
    yield engine
    while opened:
        opened.pop().close()


@pytest.fixture(params=["simulated", "local"])
def engine(request: pytest.FixtureRequest, local: Callable[[], Local]) -> Any:
    """An engine, or its name."""
    return local() if request.param == "local" else request.param


@pytest.fixture(params=SUBJECTS)
def subject(request: pytest.FixtureRequest) -> str:
    """The name of a subject whose libraries are installed."""
    name: str = request.param
    if name in NEEDS and not installed(NEEDS[name]):
        pytest.skip(f"the package of {NEEDS[name]} is not installed: make install")
    return name


def fit(
    subject: str, strategy: Any, folder: Path, name: str, *, augmented: bool = False, **options: Any
) -> chimera.Run:
    found = SUBJECTS[subject]
    run = chimera.train(
        found.model(),
        found.data(folder, augmented),
        strategy=strategy,
        out=folder / name,
        **{
            "engine": "simulated",
            "workers": 2,
            "batch_size": 6,
            "rounds": ROUNDS,
            "optimizer": {"name": "sgd", "lr": 0.1},
            **options,
        },
    )
    assert found.metrics <= run.metrics.keys()
    return run


def weights(run: chimera.Run) -> Any:
    return run.trained.parameters().copy()


@pytest.mark.takes("it imports transformers")
@pytest.mark.sampled(3)
@pytest.mark.parametrize("strategy", SAME_AS_ONE_WORKER)
def test_workers_equal_one_worker_on_the_whole_batch(subject: str, strategy: str, engine: Any, tmp_path: Path) -> None:
    named = {"name": strategy, **SAME_AS_ONE_WORKER[strategy]}
    many = fit(subject, named, tmp_path, "many", engine=engine, workers=3)
    one = fit(subject, "single-worker", tmp_path, "one", workers=1, batch_size=18)
    np.testing.assert_allclose(weights(many), weights(one), atol=3e-6)
    first = fit(subject, "single-worker", tmp_path, "first", workers=1, batch_size=18, rounds=1)
    assert not np.allclose(weights(one), weights(first), atol=1e-4)


@pytest.mark.takes("it imports transformers")
@pytest.mark.sampled(4)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_stopped_and_resumed_run_leaves_the_same_bits(
    subject: str, strategy: str, engine: Any, tmp_path: Path
) -> None:
    workers = (
        1 if strategy == "async-parameter-server" and engine != "simulated" else 2
    )  # else the order of arrival decides
    options: dict[str, Any] = {
        "augmented": True,
        "engine": engine,
        "workers": workers,
        "checkpoint_every": 2,
        "evaluate_every": 2,
        "log_every": 1,
        "rounds": 2 * ROUNDS,
    }
    named = {"name": strategy, **STRATEGIES[strategy]}
    whole = fit(subject, named, tmp_path, "whole", **options)
    with pytest.raises(StoppedError):
        fit(subject, named, tmp_path, "stopped", callbacks=[stopped_after(ROUNDS)], **options)
    resumed = fit(subject, named, tmp_path, "stopped", resume=True, **options)
    assert np.array_equal(weights(whole), weights(resumed))
    assert whole.metrics == resumed.metrics


@pytest.mark.long
@pytest.mark.parametrize(
    ("subject", "strategy"),
    [("residual-network", "all-reduce"), ("bert", "fed-avg"), ("language-model", "diloco")],
    indirect=["subject"],
)
def test_ray_gives_the_same_weights(subject: str, strategy: str, tmp_path: Path) -> None:
    named = {"name": strategy, **STRATEGIES[strategy]}
    here, there = (fit(subject, named, tmp_path, engine, engine=engine) for engine in ("simulated", "ray"))
    np.testing.assert_allclose(weights(here), weights(there), atol=3e-6)

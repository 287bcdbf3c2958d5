"""A strategy from outside the package adds its own worker calls and runs on every engine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chimera
from chimera.core.errors import ConfigurationError
from chimera.core.message import Encoded
from chimera.core.registry import load_object
from chimera.training.worker.extension import WORKER_EXTENSIONS, WorkerExtension
from nodes.test_training import fit as fit_nodes
from nodes.test_training import flat, two_nodes

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "worker-extensions.md").read_text(encoding="utf-8")
BY_CLASS = '''

class Unregistered(ElasticCalls):
    """An extension without a name of its own."""


class ElasticByClass(Elastic):
    """As Elastic, with a class in place of a name (from no paper)."""

    worker_extensions = (Unregistered,)
'''


@pytest.fixture(autouse=True)
def in_a_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run of a test writes to a folder of its own in ``runs``."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("mine") / "elastic.py"
    code = re.search(r"^```python\n# elastic.py\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert code is not None
    file.write_text(code[1] + BY_CLASS, encoding="utf-8")
    return file


def train(file: Path, strategy: str = "Elastic", engine: Any = "simulated", **options: Any) -> Any:
    return chimera.train(
        "logistic-regression", "digits", strategy=f"{file}:{strategy}", engine=engine, workers=3, batch_size=16, seed=5,
        **{"rounds": 12, "out": None, **options},
    )  # fmt: skip


def trained(file: Path, strategy: str = "Elastic", engine: Any = "simulated", **options: Any) -> Any:
    run = train(file, strategy, engine, **options)
    assert run.metrics["pulls"] == 12
    return run.trained.parameters()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("strategy", ["Elastic", "ElasticByClass"])
@pytest.mark.parametrize("engine", ["local", pytest.param("ray", marks=pytest.mark.long)])
def test_all_engines_give_the_same_weights(file: Path, engine: str, strategy: str) -> None:
    np.testing.assert_array_equal(trained(file, strategy, engine), trained(file))


@pytest.mark.long
def test_workers_find_a_class_of_a_file_whose_name_another_file_has(file: Path, tmp_path: Path) -> None:
    again = tmp_path / file.name
    again.write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    modules = [load_object(f"{one}:ElasticByClass").__module__ for one in (file, again)]
    assert modules[0] != modules[1]
    for one in (file, again):
        assert trained(one, "ElasticByClass", "local").any()


def test_nodes_find_an_extension_by_name(file: Path, tmp_path: Path) -> None:
    with two_nodes(tmp_path) as urls:
        run = fit_nodes(urls, strategy=load_object(f"{file}:Elastic")(), batch_size=20, rounds=30, out=None)
    assert run.metrics["pulls"] == 30
    assert run.metrics["accuracy"] > 0.9
    assert np.isfinite(flat(run)).all()


def test_nodes_reject_an_extension_class(file: Path, tmp_path: Path) -> None:
    with two_nodes(tmp_path) as urls, pytest.raises(ConfigurationError, match="register 'Unregistered'") as caught:
        fit_nodes(urls, strategy=load_object(f"{file}:ElasticByClass")(), batch_size=20, rounds=3, out=None)
    assert "\n" not in str(caught.value)


def test_extension_state_is_in_checkpoints_and_a_respawned_worker_starts_without_it(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(file, rounds=5, out=out, checkpoint_every=5)
    resumed = train(file, rounds=12, out=out, checkpoint_every=5, resume=True)
    np.testing.assert_array_equal(resumed.trained.parameters(), trained(file))
    assert resumed.metrics["pulls"] == 12


def test_an_unknown_call_is_named(file: Path) -> None:
    strategy = load_object(f"{file}:Elastic")()
    strategy.worker_extensions = ()
    with pytest.raises(Exception, match="no method 'send_weights'"):
        train_object(strategy)


class Clash(WorkerExtension):
    """Defines a call that workers have."""

    def weights(self) -> Encoded:
        """Do nothing useful."""
        raise AssertionError


@pytest.mark.parametrize(
    ("extensions", "message"),
    [
        (("springs",), "unknown worker extension 'springs'"),
        ((Clash,), "Clash defines 'weights', which the worker has already"),
        ((dict,), "is not a worker extension: derive it from"),
    ],
)
def test_invalid_extensions_raise_a_one_line_error(file: Path, extensions: Any, message: str) -> None:
    strategy = load_object(f"{file}:Elastic")()
    strategy.worker_extensions = extensions
    with pytest.raises(ConfigurationError, match=message) as caught:
        train_object(strategy)
    assert "\n" not in str(caught.value)


def train_object(strategy: Any) -> None:
    chimera.train("logistic-regression", "digits", strategy=strategy, engine="simulated", workers=2, rounds=2, out=None)


def test_built_in_extensions_are_found_by_name() -> None:
    assert {"gossip", "chunked-sum", "coded-shuffle", "fragments"} <= {e.name for e in WORKER_EXTENSIONS.entries()}

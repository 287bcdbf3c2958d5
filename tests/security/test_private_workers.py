"""Only listed values leave a private worker, with any strategy, and no other process receives its update."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from torch import nn

import chimera
from chimera.core.errors import DataError, PrivacyError
from chimera.data.order import ShardOrder
from chimera.data.split import DATASETS
from chimera.engines.http.hosting.hosted_actor import _method_of
from chimera.models.torch_model import TorchModel
from chimera.nodes.workers import TorchWorker
from chimera.strategies.strategy import STRATEGIES
from chimera.testing.poison import NanOnPoison, digits, round_robin
from chimera.training.experiment.resolve import model_of
from chimera.training.optimizers.optimizer import OptimizerSettings
from chimera.training.privacy.settings import Privacy
from chimera.training.privacy.worker import LEAVES, PrivateWorker
from chimera.training.worker.learner import Learner
from chimera.web.logs import close_logs
from nodes.served import serving, settings, write_data
from security.private_worker_kit import (
    Recorded,
    RecordingEngine,
    Secrets,
    Sent,
    arrays_of,
    is_made_of,
    record_secrets,  # noqa: F401 - a fixture
)

STRATEGIES_ALLOWED = sorted(entry.name for entry in STRATEGIES.entries() if entry.factory.private)
LOCAL = ("sgd", {"name": "sgd", "lr": 0.1, "momentum": 0.9}, {"name": "adam", "lr": 0.01})
MASKED, NOISY = {"clip": 0.1, "secure_aggregation": True}, {"clip": 0.1, "noise": 2.0}
KEPT = (MASKED, {**MASKED, "noise": 2.0}, NOISY)
DOWN = ("identity", "delta", "lossless")

SIZES = "Tally of elements_down, elements_up, packed_down, packed_up"
MAY_LEAVE = {
    # the update
    ("delta", "[masked of array of uint]"),
    ("delta", "[identity of array of float]"),
    ("delta", "[Rejected: the update is not finite]"),
    # keys and shares
    ("advertise_keys", "array of uint"),
    ("share_secrets", "array of uint"),
    ("reveal_shares", "[array of uint, int]"),
    # decided by the driver and the size of the model
    ("step", "int"),
    ("tally", SIZES),
    ("tally", "Tally of elements_down, packed_down"),
    ("tally", "Tally of nothing"),
    # outside of the guarantee, as the documents say
    ("samples", "int"),
    ("share", "float"),
    ("batches_per_pass", "float"),
    ("has_masked", "bool"),
    ("measure", "Measured"),
    # nothing but that the call ended
    ("take_part", "nothing"),
    ("receive_secrets", "nothing"),
    ("go_to", "nothing"),
    ("reduce_rates", "nothing"),
    ("follow", "nothing"),
    ("attack", "nothing"),
    ("forget_answer", "nothing"),
}


def fit(folder: Path, engine: RecordingEngine, **options: Any) -> chimera.Run:
    given = {
        "model": {"name": "mlp", "hidden": [4]},
        "data": "digits",
        "engine": engine,
        "workers": 3,
        "batch_size": 8,
        "optimizer": "sgd",
        "rounds": 2,
        "evaluate_every": 1,
        "log_every": 1,
        "checkpoint_every": 1,
        "out": folder,
    }
    with engine:
        return chimera.train(**{**given, **options})


def check(folder: Path, kept: Secrets, **options: Any) -> set[tuple[str, str]]:
    """Train, hold what left to the list, and look for updates in it and in the files; return what left."""
    engine = RecordingEngine()
    fit(folder, engine, **options)
    kinds = engine.sent.kinds()
    assert kinds - MAY_LEAVE == set()
    assert len(kept) >= 2
    for array in itertools.chain(engine.sent.arrays(), arrays_of(folder)):
        assert not is_made_of(array, kept)
    return kinds


def options_of(strategy: str, local: Any, privacy: Any, down: str) -> dict[str, Any] | None:
    table: dict[str, Any] = {"name": strategy, "local_steps": 2, "shards": 2}
    if strategy == "fed-nova":
        local = local if local == "sgd" or local["name"] == "sgd" else "sgd"
    return {"strategy": table, "optimizer": local, "privacy": privacy, "codec": {"name": "identity", "downlink": down}}


@pytest.mark.parametrize(("place", "strategy"), list(enumerate(STRATEGIES_ALLOWED)))
def test_only_listed_values_leave_a_worker_and_none_is_an_update(
    tmp_path: Path, secrets: Secrets, strategy: str, place: int
) -> None:
    """Each strategy, with one of the local optimizers and of the kinds of privacy; the long part has all of them."""
    options = options_of(strategy, LOCAL[(place + 1) % 3], KEPT[place // 3 % 3], DOWN[place % 3])
    check(tmp_path / "run", secrets, **options)


@pytest.mark.long
@pytest.mark.parametrize("strategy", STRATEGIES_ALLOWED)
@pytest.mark.parametrize("local", LOCAL, ids=["sgd", "momentum", "adam"])
@pytest.mark.parametrize("privacy", KEPT, ids=["masks", "both", "noise"])
def test_no_update_leaves_a_worker_in_any_combination_of_options(
    tmp_path: Path, secrets: Secrets, strategy: str, local: Any, privacy: dict[str, Any]
) -> None:
    for down in DOWN:
        secrets.clear()
        check(tmp_path / down, secrets, **options_of(strategy, local, privacy, down))


def test_no_update_leaves_a_worker_under_faults_and_attacks(tmp_path: Path, secrets: Secrets) -> None:
    strategy = {"name": "fed-avg", "shards": 2, "local_epochs": 0.02}
    faults = ["sign flip worker 0 at step 1", "kill worker 1 at step 1"]
    kinds = check(
        tmp_path / "epochs", secrets, strategy=strategy, optimizer=LOCAL[2], privacy=MASKED, faults=faults, rounds=3
    )
    assert {("attack", "nothing"), ("batches_per_pass", "float")} <= kinds
    poisoned = {"model": TorchModel(NanOnPoison, seed=0), "data": digits({2: 300}, 3), "partition": round_robin}
    secrets.clear()
    kinds |= check(
        tmp_path / "poisoned",
        secrets,
        strategy={**strategy, "local_epochs": None},
        optimizer=LOCAL[2],
        privacy=MASKED,
        **poisoned,
    )
    assert ("delta", "[Rejected: the update is not finite]") in kinds


def test_a_known_former_leak_is_detected(tmp_path: Path, secrets: Secrets) -> None:
    """What a worker without privacy leaves in a checkpoint is a multiple of its gradient: the search can fail."""
    engine = RecordingEngine()
    fit(tmp_path / "run", engine, strategy={"name": "fed-avg", "local_steps": 1}, optimizer=LOCAL[1], rounds=1)
    assert any(is_made_of(array, secrets) for array in arrays_of(tmp_path / "run"))
    assert not engine.sent.kinds() <= MAY_LEAVE


class RecordedNode(TorchWorker):
    """A node; what its workers return is noted."""

    def __init__(self, sent: Sent, model: Any, **given: Any) -> None:
        super().__init__(model, **given)
        self._sent = sent

    def actors(self) -> dict[str, Any]:
        """Return the recorded actors that a node hosts."""
        return {kind: partial(Recorded, make, self._sent) for kind, make in super().actors().items()}


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(30, 8), nn.Tanh(), nn.Linear(8, 2))


@pytest.fixture(name="node_sent")
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Sent, list[str], Any]]:
    """Serve two nodes, each with a half of the rows; gives what left them, their addresses, and test data."""
    for name in [name for name in os.environ if name.startswith("CHIMERA_")]:
        monkeypatch.delenv(name)
    inputs, targets = load_breast_cancer(return_X_y=True)
    inputs = ((inputs - inputs.mean(0)) / inputs.std(0)).astype(np.float32)
    sent, urls = Sent(), []
    with ExitStack() as stack:
        for i, name in enumerate(("tree1", "tree2")):
            write_data(tmp_path / name, inputs[i * 200 : i * 200 + 200], targets[i * 200 : i * 200 + 200])
            own = settings(tmp_path, name)
            urls.append(stack.enter_context(serving(RecordedNode(sent, network, settings=own).app(), own)))
        yield sent, urls, ((inputs[:400], targets[:400]), (inputs[400:], targets[400:]))
    close_logs()


@pytest.mark.parametrize("privacy", [MASKED, NOISY], ids=["masks", "noise"])
def test_no_update_leaves_nodes_with_their_own_data(
    tmp_path: Path, secrets: Secrets, node_sent: tuple[Sent, list[str], Any], privacy: dict[str, Any]
) -> None:
    sent, urls, data = node_sent
    chimera.train(
        network,
        data,
        engine={"name": "http", "nodes": urls},
        strategy={
            "name": "fed-avg",
            "local_steps": 1,
            "weighted": not privacy.get("noise"),
        },
        optimizer=LOCAL[2],
        privacy=privacy,
        workers=2,
        batch_size=20,
        rounds=2,
        checkpoint_every=1,
        out=tmp_path / "run",
    )
    assert {call for call, _ in sent.values} >= {"samples", "delta", "tally", "step"}
    assert sent.kinds() - MAY_LEAVE == set()
    assert len(secrets) == 2
    for array in itertools.chain(sent.arrays(), arrays_of(tmp_path / "run")):
        assert not is_made_of(array, secrets)


def test_an_error_in_a_node_reveals_its_class_only(tmp_path: Path, node_sent: tuple[Sent, list[str], Any]) -> None:
    """A driver that knows fewer classes gets the missing one in the error, but not in a private run."""
    _, urls, (_, (inputs, _)) = node_sent
    few = (inputs, np.full(len(inputs), 7))
    options = {"engine": {"name": "http", "nodes": urls}, "workers": 2, "rounds": 1, "batch_size": 20}
    with pytest.raises(DataError, match=r"rows of class '[01]'"):
        chimera.train(network, (few, few), strategy="fed-avg", out=tmp_path / "plain", **options)
    with pytest.raises(PrivacyError) as raised:
        chimera.train(network, (few, few), strategy="fed-avg", privacy=MASKED, out=tmp_path / "private", **options)
    assert str(raised.value).startswith("DataError in constructor of a private worker")
    assert not any(f"class '{label}'" in f"{raised.value}{raised.value.__cause__}" for label in (0, 1))


def worker(privacy: dict[str, Any], **options: Any) -> PrivateWorker:
    split = DATASETS.create("digits")
    order = ShardOrder(np.arange(64), batch_size=8, seed=0, rank=0)
    model = model_of({"name": "mlp", "hidden": [4]}, split.train, 0)
    settings = {"optimizer": OptimizerSettings("sgd", {"lr": 0.1}), "privacy": Privacy(**privacy), **options}
    return PrivateWorker(0, model, split.train, order, **settings)


def test_a_driver_cannot_lower_client_noise_by_the_number_of_clients() -> None:
    """Each of n clients adds one part of n of the variance: with masks the roster says how many there are, and only that."""
    with pytest.raises(PrivacyError, match="the list of keys defines the number of clients"):
        worker({**MASKED, "noise": 2.0}).take_part(10**12)


def test_private_workers_do_not_send_weights() -> None:
    with pytest.raises(PrivacyError, match="a change of weights, and no weights"):
        worker(NOISY).delta(steps=1, reached=True)


@pytest.mark.parametrize("option", [{"codec": ("top-k", {"ratio": 0.1})}, {"personal": [0]}], ids=["codec", "personal"])
def test_private_workers_reject_options_that_keep_state(option: dict[str, Any]) -> None:
    with pytest.raises(PrivacyError, match="accepts only the codec 'identity', and no personal parameters"):
        worker(NOISY, **option)


def test_all_other_calls_of_a_private_worker_are_rejected() -> None:
    made, public = worker(MASKED), {name for name in dir(Learner) if not name.startswith("_")}
    calls = {name for name in public if callable(getattr(Learner, name))}
    assert calls >= set(LEAVES)
    for name in public - calls:  # an attribute of the class is no call, also for a peer that names it
        with pytest.raises((AttributeError, PrivacyError)):
            _method_of(made, name)
    assert {call for call, _ in MAY_LEAVE} == set(LEAVES)
    for call in calls - set(LEAVES):
        with pytest.raises(PrivacyError, match=f"does not answer '{call}'"):
            getattr(made, call)()

"""Tests of resources of workers and servers: their settings, validation and reservation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import SGDClassifier
from torch import nn

from chimera.codecs.codec import CODECS
from chimera.core import device as crossing
from chimera.core.engine import Resources
from chimera.core.errors import ConfigurationError
from chimera.core.message import Encoded
from chimera.data.assignment import orders
from chimera.data.dataset import Dataset
from chimera.data.partition import PARTITIONERS
from chimera.engines.simulated import Simulated
from chimera.models.torch_model import TorchModel
from chimera.strategies.strategy import STRATEGIES
from chimera.training.experiment.experiment import Experiment
from chimera.training.experiment.resources import resources_of
from chimera.training.messages.rejection import Rejected
from chimera.training.optimizers.optimizer import OptimizerSettings
from chimera.training.worker.extension import WorkerExtension
from chimera.training.worker.learner import Learner
from fake_device import DEVICES, NAME, on_each_device
from training.conftest import Fit


class Recording(Simulated):
    """An engine that records the requested resources."""

    def __init__(self) -> None:
        super().__init__()
        self.reserved: list[Resources] = []
        self.spawned: dict[str, Resources] = {}

    def reserve(self, resources: Any, timeout_s: float | None = None) -> None:
        self.reserved += resources

    def spawn(self, actor_type: Any, /, *args: Any, resources: Any = None, name: Any = None, **kwargs: Any) -> Any:
        self.spawned[name] = resources
        return super().spawn(actor_type, *args, resources=resources, name=name, **kwargs)


def test_workers_and_servers_get_the_requested_resources(fit: Fit) -> None:
    engine = Recording()
    fit(
        engine=engine,
        rounds=2,
        strategy={"name": "parameter-server", "shards": 2},
        worker_resources={"threads": 2, "custom": {"fast_disk": 0.5}},
        server_resources=Resources(threads=3),
    )
    worker, server = Resources(threads=2, custom={"fast_disk": 0.5}), Resources(threads=3)
    assert engine.reserved == [worker] * 3 + [server] * 2
    assert engine.spawned == {f"worker {i}": worker for i in range(3)} | {f"server {i}": server for i in range(2)}


def test_resources_in_a_file_equal_those_in_python(fit: Fit) -> None:
    options = {"worker_resources": {"threads": 2}, "server_resources": Resources(custom={"disk": 2.0})}
    run = fit(rounds=2, **options)
    train = Experiment.load(run.run_dir / "experiment.toml").tables["train"]
    assert resources_of("worker_resources", train["worker_resources"]) == Resources(threads=2)
    assert resources_of("server_resources", train["server_resources"]) == Resources(custom={"disk": 2.0})


def test_one_resource_can_be_set_by_a_setting() -> None:
    tables = {"data": "digits", "model": "mlp", "train": {"worker_resources": {"threads": 2}}}
    changed = Experiment(tables).with_settings(["train.worker_resources.gpus=0.5", "train.server_resources.threads=4"])
    assert changed.tables["train"]["worker_resources"] == {"threads": 2, "gpus": 0.5}
    assert changed.tables["train"]["server_resources"] == {"threads": 4}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cpus": 2}, "worker_resources has no key 'cpus'; its keys: threads, gpus, memory_mb, custom"),
        ({"threads": 0}, "threads must be at least 1, not 0"),
        ({"threads": "two"}, "worker_resources: Expected int, got str"),
        ({"gpus": -1}, "gpus must be at least 0, not -1"),
        ({"gpus": float("nan")}, "gpus must be at least 0, not nan"),
        ({"gpus": 1.5}, "a fraction of one or a whole number, not 1.5"),
        ({"custom": {"GPU": 1}}, "'GPU' is not a custom resource: set gpus"),
        ({"custom": {"disk": 0}}, "'disk' must be above 0 and finite, not 0"),
        (3, "worker_resources = 3 cannot be used: give a table with threads, gpus, memory_mb, custom"),
    ],
)
def test_invalid_resources_raise_a_one_line_error(fit: Fit, given: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        fit(worker_resources=given)
    assert "\n" not in str(caught.value)


def test_gpus_of_servers_and_estimators_are_rejected(fit: Fit) -> None:
    with pytest.raises(ConfigurationError, match="server_resources: gpus must be 0, not 1: servers compute on the CPU"):
        fit(server_resources={"gpus": 1})
    with pytest.raises(ConfigurationError, match="SGDClassifier computes on the CPU only"):
        fit(model=SGDClassifier(), worker_resources={"gpus": 1})


PLAIN, ADAM = OptimizerSettings("sgd", {"lr": 0.1}), OptimizerSettings("adam", {"lr": 0.01})


def learner(
    device: str | None, model: TorchModel | None = None, optimizer: OptimizerSettings = PLAIN, **codecs: Any
) -> Learner:
    rng = np.random.default_rng(0)
    data = Dataset(rng.normal(size=(64, 6)).astype(np.float32), rng.integers(0, 3, 64))
    order = orders(PARTITIONERS.create("iid"), data, 1, 8, 0)[0]
    model = model or TorchModel(lambda: nn.Sequential(nn.Linear(6, 5), nn.Dropout(), nn.Linear(5, 3)), seed=1)
    return Learner(0, model, data, order, optimizer=optimizer, device=device, **codecs)


@on_each_device
@pytest.mark.parametrize("local", [PLAIN, ADAM], ids=["plain", "adam"])
def test_a_learner_on_a_device_learns_the_same(device: str, local: OptimizerSettings) -> None:
    here, there = learner(None, optimizer=local), learner(device, optimizer=local)
    if device == "cuda":  # its generator drops other units
        for one in (here, there):
            one._model.module[1].p = 0.0  # type: ignore[attr-defined]
    for one in (here, there):
        one.train(5)
        one.delta(one.weights(), steps=3)
        one.restore_local({key: value.copy() for key, value in one.local_state().items()})
        one.delta(one.weights(), steps=3)
        (gradient,) = one.gradient(one.weights())
        assert type(gradient.arrays[0]) is np.ndarray
    tolerance = 0.0 if device == NAME else 1e-4
    np.testing.assert_allclose(there.weights().arrays[0], here.weights().arrays[0], rtol=tolerance, atol=tolerance)
    assert there.tally().loss == pytest.approx(here.tally().loss, rel=1e-3 if device == "cuda" else 0)


@on_each_device
@pytest.mark.parametrize("rule", [{"name": "proximal", "mu": 0.5}, {"name": "control-variates"}, None], ids=str)
def test_local_rules_and_personal_parameters_are_equal_on_a_device(device: str, rule: Any) -> None:
    personal = [] if rule and rule["name"] == "control-variates" else [0]
    here, there = (learner(where, optimizer=ADAM, personal=personal) for where in (None, device))
    results = []
    for one in (here, there):
        one._model.module[1].p = 0.0  # type: ignore[attr-defined]
        weights = one.weights().arrays[0][30 if personal else 0 :].copy()  # without the first matrix, where that stays
        given = [Encoded("identity", weights.size, (weights,))]
        if not personal:
            given.append(Encoded("identity", weights.size, (np.full_like(weights, 0.01),)))
        for _ in range(2):
            messages = one.delta(*given, steps=3, rule=rule)
            one.restore_local({key: value.copy() for key, value in one.local_state().items()})
        before = one.weights().arrays[0].copy()
        metrics = one.evaluate(given[0])
        assert np.array_equal(one.weights().arrays[0], before)
        results.append([*(message.arrays[0] for message in messages), before, np.array([metrics["loss"]])])
    for at_home, away in zip(*results, strict=True):
        assert type(away) is np.ndarray
        np.testing.assert_allclose(away, at_home, rtol=1e-4, atol=1e-4 if device == "cuda" else 1e-6)


@on_each_device
def test_vectors_are_copied_to_the_host_if_the_strategy_needs_them(device: str) -> None:
    """A worker that takes local steps after sending messages continues from its state."""
    here, there = learner(None), learner(device)
    for one in (here, there):
        one._model.module[1].p = 0.0  # type: ignore[attr-defined]
        for _ in range(2):
            one.train(2)
            one.delta(one.weights(), steps=3)
            one.restore({**one.state(), "step": 4})
    np.testing.assert_allclose(there.weights().arrays[0], here.weights().arrays[0], rtol=1e-4, atol=1e-4)


@on_each_device
def test_only_messages_are_copied_between_device_and_host(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither weights nor gradients do: not for a gradient, and not for a change of weights after many steps."""
    model = TorchModel(lambda: nn.Sequential(nn.Linear(6, 4000), nn.Tanh(), nn.Linear(4000, 3)), seed=1)
    codecs = {"codec": ("int8", {"error_feedback": True}), "downlink": ("cast", {})}
    worker = learner(device, model, **codecs)
    weights = CODECS.create("cast").encode(np.zeros(model.layout.size, np.float32), model.layout)
    worker.gradient(weights)  # brings the weights there once
    crossed: list[int] = []
    view = crossing._as_tensor
    monkeypatch.setattr(crossing, "_as_tensor", lambda array: crossed.append(array.nbytes) or view(array))
    for act in (lambda: worker.gradient(weights), lambda: worker.delta(weights, steps=3)):
        crossed.clear()
        (message,) = act()
        assert message.codec == "int8"
        assert weights.nbytes + message.nbytes <= sum(crossed) <= weights.nbytes + 2 * message.nbytes + 100
    assert (worker.weights().arrays[0] != 0).any()
    assert crossed[-1] == 4 * model.layout.size  # that is what such a crossing would be


@pytest.mark.usefixtures("fake_device")
@pytest.mark.parametrize("device", [None, *DEVICES])
def test_a_non_finite_gradient_is_rejected_on_its_device(device: str | None) -> None:
    worker = learner(device)
    broken = np.full(worker.weights().size, 3e38, np.float32)
    for act in (worker.gradient, lambda weights: worker.delta(weights, steps=1)):
        (rejected,) = act(Encoded("identity", broken.size, (broken,)))
        assert isinstance(rejected, Rejected)
        assert "nan" in rejected.why or "NaN" in rejected.why


UPLINKS: dict[str, dict[str, Any]] = {
    "identity": {"name": "identity"},
    "int8": {"name": "int8", "stochastic": True},
    "qsgd": {"name": "qsgd"},
    "top-k": {"name": "top-k", "ratio": 0.05, "error_feedback": True},
    "random-k": {"name": "random-k", "ratio": 0.1, "error_feedback": True},
    "dgc": {"name": "dgc", "ratio": 0.05},
    "layer-wise": {"name": "layer-wise", "default": "natural", "layers": {"0.*": "nonuniform"}},
    "onebit": {"name": "onebit"},
    "sign": {"name": "sign", "error_feedback": True},
    "powersgd": {"name": "powersgd"},
    "adaptive": {"name": "adaptive", "codecs": ["natural", "int8"], "every": 4},
}
DOWNLINKS: list[dict[str, Any]] = [
    {"name": "delta", "codec": "int8"},
    {"name": "delta", "codec": {"name": "powersgd", "error_feedback": False}},  # decodes to other bits on a device
    {"name": "loss-aware", "bits": 4},
]
BY_SUMS = {"onebit", "sign", "powersgd"}  # added up otherwise on a device, see tests/codecs/test_device.py


@pytest.mark.sampled(2)
@on_each_device
@pytest.mark.parametrize("uplink", UPLINKS)
def test_a_run_on_a_device_equals_a_run_on_the_host(
    fit: Fit, uplink: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chimera.models.device._gpu", lambda rank: device)
    options = {"engine": "simulated", "workers": 2, "rounds": 12, "codec": {**UPLINKS[uplink], "downlink": "cast"}}
    plain, moved = (fit(f"run-{gpus}", **options, worker_resources={"gpus": gpus}) for gpus in (0, 1))
    tolerance = 0.0 if device == NAME and uplink not in BY_SUMS else 1e-4
    for own, other in zip(moved.model.state_dict().values(), plain.model.state_dict().values(), strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=tolerance)
    assert moved.cost.bytes_up == plain.cost.bytes_up


@pytest.mark.sampled(2)
@on_each_device
@pytest.mark.parametrize("downlink", DOWNLINKS, ids=str)
def test_chained_downlink_codecs_work_on_a_device(
    fit: Fit, downlink: dict[str, Any], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chimera.models.device._gpu", lambda rank: device)
    strategy = {"name": "parameter-server", "shards": 2}
    options = {"strategy": strategy, "engine": "simulated", "workers": 2, "rounds": 12}
    codec = {"name": "top-k", "ratio": 0.05, "error_feedback": True, "downlink": downlink}
    plain, moved = (fit(f"run-{n}", **options, codec=codec, worker_resources={"gpus": n}) for n in (0, 1))
    for own, other in zip(moved.model.state_dict().values(), plain.model.state_dict().values(), strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=0.0 if device == NAME else 1e-4)
    assert moved.cost.bytes_down == plain.cost.bytes_down


@on_each_device
@pytest.mark.parametrize(
    ("strategy", "workers", "copies"),
    [
        ("all-reduce", 1, 0),
        ("all-reduce", 2, 2),  # the gradient to the host, and the mean back
        ("d-psgd", 3, 2),  # the weights to the device, and the gradient to the host
    ],
)
def test_a_step_copies_as_few_vectors_as_its_strategy_needs(
    fit: Fit, strategy: str, workers: int, copies: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a group, weights and the optimizer's state stay on the device."""
    monkeypatch.setattr("chimera.models.device._gpu", lambda rank: device)
    vectors: list[int] = []
    view = crossing._as_tensor
    monkeypatch.setattr(crossing, "_as_tensor", lambda array: vectors.append(array.size) or view(array))
    options = {"strategy": strategy, "workers": workers, "worker_resources": {"gpus": 1}, "evaluate_every": 100}
    counts = []
    for rounds in (2, 12):
        vectors.clear()
        run = fit(f"run-{rounds}", **options, rounds=rounds)
        counts.append(vectors.count(sum(each.numel() for each in run.model.parameters())))
    assert counts[1] - counts[0] == 10 * copies * workers


class Pulling(WorkerExtension):
    """Keeps optimizer and weights over a step, as before optimizers were on devices."""

    def pull(self) -> None:
        optimizer, flat = self.worker.optimizer, self.worker.model.parameters()
        gradient, _ = self.worker.next_gradient()
        optimizer.step(gradient, self.worker.step)
        flat *= np.float32(0.5)
        self.worker.step += 1


@on_each_device
def test_an_extension_that_keeps_the_weights_over_a_step_loses_no_update(device: str) -> None:
    here, there = (learner(where, optimizer=ADAM, extensions=[Pulling]) for where in (None, device))
    for one in (here, there):
        one._model.module[1].p = 0.0  # type: ignore[attr-defined]
        for _ in range(3):
            one.pull()
    np.testing.assert_allclose(there.weights().arrays[0], here.weights().arrays[0], rtol=1e-4, atol=1e-4)


@on_each_device
@pytest.mark.parametrize(
    "optimizer", [ADAM, OptimizerSettings("sgd", {"lr": 0.1, "momentum": 0.9})], ids=["adam", "momentum"]
)
def test_a_replica_of_the_host_continues_on_a_device_and_back(device: str, optimizer: OptimizerSettings) -> None:
    whole, first, second, third = (learner(where, optimizer=optimizer) for where in (None, None, device, None))
    for one in (whole, first, second, third):
        one._model.module[1].p = 0.0  # type: ignore[attr-defined]
    whole.train(6)
    first.train(2)
    for before, after in ((first, second), (second, third)):
        after.restore(before.state())
        after.train(2)
    np.testing.assert_allclose(third.weights().arrays[0], whole.weights().arrays[0], rtol=1e-4, atol=1e-4)


@on_each_device
def test_reductions_with_a_codec_work_on_a_device(fit: Fit, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chimera.models.device._gpu", lambda rank: device)
    options = {"strategy": "all-reduce", "engine": "simulated", "workers": 2, "rounds": 6, "codec": "powersgd"}
    plain, moved = (fit(f"run-{n}", **options, worker_resources={"gpus": n}) for n in (0, 1))
    for own, other in zip(moved.model.state_dict().values(), plain.model.state_dict().values(), strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=0.0 if device == NAME else 1e-4)
    assert moved.cost.bytes_up == plain.cost.bytes_up


LITTLE: dict[str, dict[str, Any]] = {
    "diloco": {"local_steps": 2},
    "streaming-diloco": {"local_steps": 5},
    "fed-bn": {"keep": ["*.bias"]},
}


@pytest.mark.sampled(2)
@on_each_device
@pytest.mark.parametrize("strategy", [entry.name for entry in STRATEGIES.entries()])
@pytest.mark.takes("each operation on the fake device is checked")
def test_every_strategy_learns_the_same_on_a_device(
    fit: Fit, strategy: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after the weights were read, which copies them to the host."""
    monkeypatch.setattr("chimera.models.device._gpu", lambda rank: device)
    table = {"name": strategy, **LITTLE.get(strategy, {})}
    options = {"strategy": table, "model": {"name": "mlp", "hidden": [16] * 3}, "workers": 4, "rounds": 4}
    options["optimizer"] = STRATEGIES.create(strategy).default_optimizer
    plain, moved = (fit(f"run-{n}", **options, evaluate_every=2, worker_resources={"gpus": n}) for n in (0, 1))
    for own, other in zip(moved.model.state_dict().values(), plain.model.state_dict().values(), strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=1e-6 if device == NAME else 1e-3)


@pytest.mark.long
@pytest.mark.parametrize("engine", ["simulated", "local"])
def test_gpus_are_used_or_missing_gpus_raise_a_one_line_error(fit: Fit, engine: str, tmp_path: Path) -> None:
    asked = {"engine": engine, "workers": 2, "rounds": 4, "worker_resources": {"gpus": 1}}
    if torch.cuda.is_available():
        assert fit(**asked).cost.rounds == 4
        return
    with pytest.raises(ConfigurationError, match="torch sees no GPU in the process of rank 0") as caught:
        fit(**asked)
    assert "\n" not in str(caught.value)

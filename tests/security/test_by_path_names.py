"""No name by path from the network is imported or called: each string of each message of a driver is replaced."""

from __future__ import annotations

import contextlib
import queue
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import chimera
from chimera.cli.infer_cluster import takes_code_by_default
from chimera.core.errors import ChimeraError, ConfigurationError
from chimera.core.registry import load_object, registered_names_only
from chimera.data.order import OwnOrder
from chimera.engines.http import wire
from chimera.engines.http.connection import Answer, Connection
from chimera.engines.http.hosting.host import Host
from chimera.engines.http.hosting.hosted_actor import Reply
from chimera.inference import models
from chimera.nodes.workers import TorchWorker
from chimera.nodes.workers.gradient_worker import GradientWorker
from chimera.training.optimizers.optimizer import OptimizerSettings
from chimera.training.worker.driver_schema import DriverSchema
from inference.running import cluster
from nodes.served import LIMIT_S, ask, error_of, serving, settings, write_data

Message = tuple[str, bytes]  # the path below /v1/chimera/actors/NAME, and the body
RUNS: dict[str, dict[str, Any]] = {
    "servers": {
        "strategy": {"name": "parameter-server", "shards": 2},
        "codec": {"name": "layer-wise", "layers": {"0": {"name": "qsgd", "error_feedback": True}}, "default": "int8",
                  "downlink": {"name": "delta", "codec": {"name": "top-k", "ratio": 0.5}}},
        "optimizer": {"name": "adam", "lr": 0.1},
    },
    "local steps": {
        "strategy": {"name": "fed-prox", "local_steps": 2, "server_optimizer": {"name": "adam", "lr": 0.1}},
        "optimizer": {"name": "adam", "lr": 0.1},
        "evaluate_clients": True,
        "checkpoint_every": 1,
    },
    "neighbours": {"strategy": "choco-sgd", "codec": {"name": "top-k", "ratio": 0.5, "lossless": True}},
    "private": {
        "strategy": {"name": "fed-avg", "local_steps": 1},
        "privacy": {"clip": 1.0, "secure_aggregation": True},
    },
}  # fmt: skip


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


def node(folder: Path, name: str = "tree1", **given: Any) -> GradientWorker:
    rng = np.random.default_rng(0)
    write_data(folder / name, rng.normal(size=(20, 4)), rng.integers(0, 2, 20))
    return TorchWorker(network, settings=settings(folder, name, **given))


@pytest.fixture
def messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> list[Message]:
    """What a driver sends the first of two nodes in a run, in order."""
    sent: list[Message] = []
    send = Connection.request

    def recording(self: Connection, verb: str, path: str, body: bytes = b"", *rest: Any, **options: Any) -> Answer:
        place = path.removeprefix("/v1/chimera/actors/")
        if verb == "POST" and place != path and self._address.url == urls[0]:  # type: ignore[attr-defined]
            sent.append((place.partition("/")[2], bytes(body)))
        return send(self, verb, path, body, *rest, **options)

    monkeypatch.setattr(Connection, "request", recording)
    workers = [node(tmp_path, f"tree{i}") for i in (1, 2)]
    with serving(workers[0].app(), workers[0].settings) as one, serving(workers[1].app(), workers[1].settings) as other:
        urls = [one, other]
        rows = np.random.default_rng(1).normal(size=(8, 4)).astype(np.float32), np.array([0, 1] * 4)
        options = {
            "rounds": 2,
            "batch_size": 4,
            "workers": 2,
            "seed": 1,
            "out": tmp_path / "run",
            **RUNS[request.param],
        }
        chimera.train(network, (rows, rows), engine={"name": "http", "nodes": urls}, **options)
    return sent


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[list[str], Callable[[], bool]]]:
    """Names by path of a function that must not be imported, and whether it was."""
    file = tmp_path / "canary_of_chimera.py"
    mark = tmp_path / "sang"
    file.write_text(f"import pathlib\npathlib.Path({str(mark)!r}).touch()\ndef sing(*args, **options): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield ["canary_of_chimera:sing", f"{file}:sing"], mark.exists
    sys.modules.pop("canary_of_chimera", None)


def mutants(value: Any, name: str) -> Iterator[Any]:
    """Yield the value with each of its strings, keys of dictionaries among them, replaced by the name, one at a time."""
    if isinstance(value, str):
        yield name
    elif isinstance(value, dict):
        for key, part in value.items():
            yield {**{k: v for k, v in value.items() if k != key}, name: part}
            for other in mutants(part, name):
                yield {**value, key: other}
    elif isinstance(value, list | tuple):
        for place, part in enumerate(value):
            for other in mutants(part, name):
                yield type(value)([*value[:place], other, *value[place + 1 :]])
    elif type(value) in wire._by_type:
        entry = wire._by_type[type(value)]
        for plain in mutants(entry.to_plain(value), name):
            try:
                yield entry.from_plain(plain)
            except Exception:  # the node refuses it in the same place
                yield _Raw(entry.name, plain)


class _Raw:
    """A value of a registered type whose plain form its own constructor refuses."""

    def __init__(self, name: str, plain: Any) -> None:
        self.name, self.plain = name, plain


@pytest.fixture(autouse=True)
def raw_values_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    rarer = wire._Writer._rarer

    def writing(self: Any, kind: type, value: Any) -> Any:
        return {"r": [value.name, self.plain(value.plain)]} if kind is _Raw else rarer(self, kind, value)

    monkeypatch.setattr(wire._Writer, "_rarer", writing)


def answered(host: Host, actor: str, message: Message) -> Reply:
    """Return the reply of a node to a message."""
    replies: queue.SimpleQueue[Reply] = queue.SimpleQueue()
    method, body = message
    if method:
        host.call(actor, method, body, replies.put)
    else:
        host.create(actor, body, replies.put)
    return replies.get(timeout=LIMIT_S)


@pytest.mark.parametrize("messages", RUNS, indirect=True)
def test_no_string_in_a_message_of_a_driver_causes_an_import_or_call(
    messages: list[Message], canary: tuple[list[str], Callable[[], bool]], tmp_path: Path
) -> None:
    names, sang = canary
    host = Host(node(tmp_path).actors())
    first_of_each = {method: (method, body) for method, body in reversed(messages)}
    assert "" in first_of_each
    tried = 0
    try:
        for message in first_of_each.values():
            value = wire.unpack(message[1])
            for name in names:
                for number, mutant in enumerate(mutants(value, name)):
                    actor = f"engine.{tried}-{number}"
                    if message[0]:
                        assert answered(host, actor, first_of_each[""]).status == 200
                    with contextlib.suppress(ChimeraError):
                        answered(host, actor, (message[0], wire.pack(mutant)))
                    host.kill(actor)
                    assert not sang(), (message[0], mutant)
                    tried += 1
    finally:
        host.close()
    assert tried > 20


@pytest.mark.parametrize("option", ["downlink", "extensions"])
def test_code_by_path_is_rejected_with_the_reason(
    tmp_path: Path, canary: tuple[list[str], Callable[[], bool]], option: str
) -> None:
    """One POST with a codec named by path ran any function."""
    (name, _), sang = canary
    host = Host(node(tmp_path).actors())
    counterpart = DriverSchema(((3, 4), (3,), (2, 3), (2,)), ("0", "1"), None)
    options = {
        "optimizer": OptimizerSettings("sgd", {"lr": 0.1}),
        option: (name, {}) if option == "downlink" else [name],
    }
    made = {
        "kind": "chimera.training.worker.learner.Learner",
        "call": [[0, counterpart, None, OwnOrder(4, 1)], options],
    }
    try:
        reply = answered(host, "a.b", ("", wire.pack(made)))
    finally:
        host.close()
    failure = wire.unpack(reply.body)["failure"]
    assert (reply.status, failure["kind"]) == (500, "CodeRefusedError")
    assert f"{name!r} is refused: a driver must not name code by path" in failure["summary"]
    assert not sang()


def test_registries_reject_paths_within_the_context() -> None:
    from chimera.codecs.codec import CODECS

    with registered_names_only("a driver"):
        for ask_for in (load_object, CODECS.find, CODECS.create):
            with pytest.raises(
                ConfigurationError, match=r"'os:system' is refused: a driver must not name code by path; use"
            ):
                ask_for("os:system")
        with registered_names_only(None):
            assert load_object("os:getcwd") is __import__("os").getcwd
        assert CODECS.create("identity", {})
    assert load_object("os:getcwd")


@pytest.mark.parametrize("content_type", ["text/plain", "application/json", "", "text/plain, " + wire.CONTENT_TYPE])
@pytest.mark.parametrize("path", ["/v1/chimera/actors/a", "/v1/chimera/actors/a/gradient"])
def test_actors_accept_chimeras_body_type_only(tmp_path: Path, path: str, content_type: str) -> None:
    body = wire.pack({"kind": "chimera.training.worker.learner.Learner"})
    app = node(tmp_path).app()
    answer = ask(app, "POST", path, content=body, headers={"content-type": content_type})
    assert error_of(answer)[:2] == (415, "UnsupportedMediaTypeError")


@pytest.mark.parametrize("threads", [-3, 0, True, "2", 1_000_000, None])
def test_invalid_thread_counts_are_rejected(tmp_path: Path, threads: Any) -> None:
    host = Host(node(tmp_path).actors())
    body = wire.pack({"kind": "chimera.training.worker.learner.Learner", "threads": threads})
    try:
        with pytest.raises(ConfigurationError, match="threads must be a whole number from 1 to"):
            host.create("a.b", body, lambda _: None)
        assert host.actors_of_all() == 0
    finally:
        host.close()


@pytest.mark.parametrize(
    "model",
    ["{name}", '{{name = "{name}"}}', '{{name = "mlp", activation = "{name}"}}'],
    ids=["name", "table", "option"],
)
def test_an_untrusted_run_folder_runs_no_code(
    tmp_path: Path, canary: tuple[list[str], Callable[[], bool]], model: str
) -> None:
    names, sang = canary
    run = chimera.train("mlp", "iris", engine="simulated", workers=1, rounds=1, out=tmp_path / "run")
    for name in names:
        written = model.format(name=name)
        told = written if written.startswith("{") else f'"{written}"'
        (run.run_dir / "experiment.toml").write_text(f"model = {told}\n")
        with pytest.raises(ConfigurationError) as caught:
            models.load({"kind": "chimera", "run": str(run.run_dir)})
        assert "\n" not in str(caught.value)
        if "activation" not in model:
            assert "trust_code = true" in str(caught.value)
            assert name in str(caught.value)
        assert not sang()


def test_code_of_a_trusted_run_folder_runs(tmp_path: Path) -> None:
    file = tmp_path / "mine_of_this_test.py"
    file.write_text("from torch import nn\ndef make(): return nn.Linear(4, 3)\n")
    run = chimera.train(f"{file}:make", "iris", engine="simulated", workers=1, rounds=1, out=tmp_path / "run")
    table = {"kind": "chimera", "run": str(run.run_dir)}
    with pytest.raises(ConfigurationError, match=f"{file}:make' is refused: .*experiment.toml .*set trust_code = true"):
        models.check(table)
    assert len(models.load({**table, "trust_code": True}).predict([[1, 2, 3, 4]])) == 1


PINNED = {"kind": "transformers", "task": "fill-mask", "model": "a/b", "revision": "1"}
CODE: dict[str, dict[str, Any]] = {
    "factory": {"kind": "factory", "factory": "os:system"},
    "trusted": {"kind": "sklearn", "file": "model.skops", "trusted": ["os.system"]},
    "trust_remote_code": PINNED | {"trust_remote_code": True},
    "pickled_weights": PINNED | {"pickled_weights": True},
}


@pytest.mark.parametrize("key", CODE)
def test_a_model_that_runs_code_is_reported(tmp_path: Path, key: str) -> None:
    (tmp_path / "model.skops").touch()
    assert models.check(CODE[key], folder=tmp_path)["kind"] == CODE[key]["kind"]
    with pytest.raises(ConfigurationError, match=f"the key '{key}' of the model runs code"):
        models.check(CODE[key], folder=tmp_path, code=False)


@pytest.mark.long
def test_a_cluster_without_code_rejects_code_from_authorized_clients(tmp_path: Path) -> None:
    with cluster(tmp_path, workers=0, standbys=0, options=["--no-code"]) as running:
        for ask in (
            lambda: running.client.submit(CODE["factory"], ["touch canary"]),
            lambda: running.client.serve("mine", CODE["factory"]),
        ):
            with pytest.raises(ConfigurationError, match="the key 'factory' of the model runs code"):
                ask()
        assert running.client.rows("jobs") == []


@pytest.mark.parametrize(
    ("voters", "code"), [((), True), (("127.0.0.1:1", "[::1]:2"), True), (("127.0.0.1:1", "10.0.0.7:1"), False)]
)
def test_a_cluster_beyond_loopback_accepts_code_only_if_configured(voters: tuple[str, ...], code: bool) -> None:
    assert takes_code_by_default(voters) is code

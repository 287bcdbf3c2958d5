"""The model travels, code does not: names by path, paths and URLs of a driver are refused at a node, wherever they are."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest

from chimera.core.errors import ChimeraError, CodeRefusedError, ConfigurationError, DataError
from chimera.core.message import Encoded
from chimera.data.order import OwnOrder
from chimera.engines.http import wire
from chimera.engines.http.connection import Answer, Connection
from chimera.engines.http.hosting.host import Host
from chimera.federation.data.disclosure import Disclosure
from chimera.federation.data.learner import node_actors
from chimera.training.nodes_data.model_table import check_model_table, model_table
from chimera.training.optimizers.optimizer import OptimizerSettings
from chimera.training.worker.driver_schema import DriverSchema, NodeRequest
from federation.data_kit import MLP, fit, nodes, table, thirds, written
from security.test_by_path_names import (  # noqa: F401 - two fixtures
    Message,
    _Raw,
    answered,
    canary,
    mutants,
    raw_values_travel,
)

pytestmark = pytest.mark.usefixtures("own_folder")

Canary = tuple[list[str], Callable[[], bool]]
LEARNER = "chimera.training.worker.learner.Learner"


@pytest.fixture
def messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Message]:
    """What a driver sends the first of two nodes in a run, in order."""
    sent: list[Message] = []
    send = Connection.request

    def recording(self: Connection, verb: str, path: str, body: bytes = b"", *rest: Any, **options: Any) -> Answer:
        place = path.removeprefix("/v1/chimera/actors/")
        if verb == "POST" and place != path and self._address.url == urls[0]:  # type: ignore[attr-defined]
            sent.append((place.partition("/")[2], bytes(body)))
        return send(self, verb, path, body, *rest, **options)

    monkeypatch.setattr(Connection, "request", recording)
    with nodes(tmp_path, written(tmp_path, small())) as urls:
        fit(
            urls, {**MLP, "activation": "relu", "loss": "cross-entropy", "metrics": ["accuracy", "f1"]},
            data={"name": "nodes", "categories": {"sex": ["f", "m"]}}, rounds=1, evaluate_every=1,
            strategy={"name": "fed-prox", "local_steps": 1}, optimizer={"name": "adam", "lr": 0.1},
            codec={"name": "top-k", "ratio": 0.5, "downlink": {"name": "delta", "codec": "int8"}},
        )  # fmt: skip
    return sent


def small() -> list[pd.DataFrame]:
    frame = pd.DataFrame({"age": range(60), "sex": ["f", "m"] * 30})
    return [frame.assign(ill=["no", "yes", "yes"] * 20), frame.assign(ill=["yes", "no", "yes"] * 20)]


def test_no_string_in_a_message_of_a_driver_causes_an_import_or_call(
    messages: list[Message],
    canary: Canary,  # noqa: F811 - the fixture
    tmp_path: Path,
) -> None:
    names, sang = canary
    host = Host(node_actors(written(tmp_path, small()[:1])[0], Disclosure()))
    made = [body for method, body in messages if not method and wire.unpack(body)["kind"] == LEARNER][-1]
    first = {method: body for method, body in reversed(messages) if method and method != "describe"} | {"": made}
    strings = 0
    try:
        for method, body in first.items():
            value = wire.unpack(body)
            for name in names:
                for number, mutant in enumerate(mutants(value, name)):
                    actor = f"engine.{strings}-{number}"
                    if method:
                        assert answered(host, actor, ("", made)).status == 200
                    with contextlib.suppress(ChimeraError):
                        answered(host, actor, (method, wire.pack(mutant)))
                    host.kill(actor)
                    assert not sang(), (method, mutant)
                    strings += 1
    finally:
        host.close()
    assert strings > 60


def answer(
    folder: Path,
    model: dict[str, Any],
    disclosure: Disclosure | None = None,
    *,
    rule: Any = None,
    beside: dict[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Return what a node answers a driver that asks for this model, and for local steps if there is a model.

    ``beside`` has further fields of the schema and of the request in it, which no driver sends.
    """
    (own,) = written(folder, small()[:1])
    columns = own.columns
    request = NodeRequest(model, "classification", 2, (3,), columns, rows_per_node=None)
    schema = DriverSchema(((2, 3), (2,)), ("no", "yes"), None, request=request)
    given = {"optimizer": OptimizerSettings("sgd", {"lr": 0.1}), **options}
    sent: Any = schema
    if beside is not None:
        plain = msgspec.to_builtins(schema)
        sent = _Raw("counterpart", {**plain, **beside, "request": {**plain["request"], **beside}})
    weights = Encoded("identity", 8, (np.zeros(8, np.float32),))
    host = Host(node_actors(own, disclosure or Disclosure()))
    try:
        reply = answered(
            host, "a.b", ("", wire.pack({"kind": LEARNER, "call": [[0, sent, None, OwnOrder(4, 1)], given]}))
        )
        if reply.status == 200:  # codecs and optimizers are created when they are needed
            reply = answered(host, "a.b", ("delta", wire.pack({"call": [[weights], {"steps": 1, "rule": rule}]})))
    finally:
        host.close()
    return dict(wire.unpack(reply.body))


BAD = [
    "{path}",
    "{file}",
    "/etc/model",
    "~/model.py",
    "../model",
    "https://evil.example/model",
    "file:///etc/model",
    "a:b",
]
PLACES: dict[str, Callable[[str], dict[str, Any]]] = {
    "name": lambda bad: {"name": bad},
    "loss": lambda bad: {"name": "logistic-regression", "loss": bad},
    "step": lambda bad: {"name": "logistic-regression", "step": bad},
    "metrics": lambda bad: {"name": "logistic-regression", "metrics": [bad]},
    "named metric": lambda bad: {"name": "logistic-regression", "metrics": {"own": bad}},
    "option": lambda bad: {"name": "mlp", "activation": bad},
    "folder": lambda bad: {"name": "folder", "folder": bad},
    "path of a folder": lambda bad: {"name": "folder", "folder": "mine", "path": bad},
    "hub": lambda bad: {"name": "huggingface", "task": "sequence-classification", "path": bad},
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_a_model_that_names_code_files_or_addresses_is_refused_at_the_node(
    tmp_path: Path,
    canary: Canary,  # noqa: F811 - the fixture
    place: str,
) -> None:
    (path, file), sang = canary
    for bad in BAD:
        told = answer(tmp_path, PLACES[place](bad.format(path=path, file=file)), Disclosure(models={"mine": tmp_path}))
        failure = told["failure"]
        assert failure["kind"] in ("CodeRefusedError", "ConfigurationError"), (bad, failure)
        assert "\n" not in failure["summary"]
        assert not sang()


@pytest.mark.parametrize("option", ["codec", "downlink", "optimizer", "extensions", "rule"])
def test_further_names_by_path_are_refused_at_the_node(
    tmp_path: Path,
    canary: Canary,  # noqa: F811 - the fixture
    option: str,
) -> None:
    (path, _), sang = canary
    values: dict[str, Any] = {
        "optimizer": OptimizerSettings(path, {"lr": 0.1}), "extensions": [path], "rule": {"name": path}
    }  # fmt: skip
    given = values.get(option, (path, {}))
    told = answer(tmp_path, {"name": "logistic-regression"}, **{option: given})
    assert told["failure"]["kind"] == "CodeRefusedError"
    assert not sang()


def test_fields_that_no_driver_sends_are_not_used(
    tmp_path: Path,
    canary: Canary,  # noqa: F811 - the fixture
) -> None:
    """Partitions, transforms, losses and metrics are no fields of a request: the owner, or the model's table, has them."""
    names, sang = canary
    for name in names:
        fields = (
            "partition",
            "transform",
            "test_transform",
            "loss",
            "metrics",
            "labels",
            "groups",
            "step",
            "data",
            "path",
        )
        told = answer(tmp_path, {"name": "logistic-regression"}, beside=dict.fromkeys(fields, name))
        assert "failure" not in told
        assert not sang()


def test_a_plain_model_is_accepted(tmp_path: Path) -> None:
    assert "failure" not in answer(tmp_path, {"name": "logistic-regression", "metrics": ["accuracy", "top-2-accuracy"]})


def test_a_model_larger_than_the_driver_says_is_refused(tmp_path: Path) -> None:
    told = answer(tmp_path, {"name": "mlp", "hidden": [1 << 20, 1 << 20]})
    assert "more parameters than the driver's" in told["failure"]["summary"]
    told = answer(tmp_path, {"name": "logistic-regression"}, Disclosure(max_parameters=7))
    assert "the model has 8 parameters, but this node builds models of up to 7" in told["failure"]["summary"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"outputs": 1 << 40}, "they need 2 outputs, the run has 1099511627776"),
        ({"input_shape": [1 << 40]}, r"the shape \(3,\), those of the run \(1099511627776,\)"),
        ({"task": "regression"}, "their target is for classification"),
        ({"columns": None}, "they are a table"),
        ({"columns": [{"name": "age"}, {"name": "sex", "categories": [str(i) for i in range(5000)]}], "input_shape": [5001]},
         "the run has 5000 texts of the column 'sex', too many for node 'north'"),
        ({"columns": [{"name": "age"}, {"name": "sex", "categories": ["f"]}], "input_shape": [2]},
         "node 'north' has 'm' in the column 'sex', which the run has not"),
        ({"scaled": "declared", "mean": [0.0], "deviation": [1.0]}, "does not fit its 3 inputs"),
        ({"scaled": "declared", "mean": [0.0] * 3, "deviation": [0.0] * 3}, "does not fit its 3 inputs"),
        ({"model": {"name": "nothing"}}, "unknown model 'nothing'"),
        ({"model": {}}, "needs a 'name'"),
        ({"model": {"name": "mlp", "width": 3}}, "has no option 'width'"),
        ({"model": {"name": "logistic-regression", "metrics": ["auroc"]}}, "the metric 'auroc' needs the outputs of all rows"),
    ],
)  # fmt: skip
def test_a_request_that_does_not_fit_the_node_is_refused_before_anything_is_made(
    tmp_path: Path, fields: dict[str, Any], said: str
) -> None:
    told = answer(tmp_path, {"name": "logistic-regression"}, beside=fields)
    summary = told["failure"]["summary"] if "failure" in told else told["message"]
    assert re.search(said, summary), summary


def test_the_driver_refuses_models_that_nodes_cannot_make(tmp_path: Path) -> None:
    for model, said in (
        (dict, "is a Python object"),
        ("os:system", "must not name code"),
        ({"name": "huggingface", "path": "gpt2"}, "it reads files"),
        ({"name": "mlp", "hidden": [object()]}, "plain values only"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            model_table(model)
    with pytest.raises(CodeRefusedError):
        check_model_table({"name": "mlp", "activation": "a/b"})


NET = """
from torch import nn

def make(input_shape, outputs, width=4):
    return nn.Sequential(nn.Linear(input_shape[0], width), nn.ReLU(), nn.Linear(width, outputs))
"""


def model_folder(folder: Path, width: int = 4) -> Path:
    folder.mkdir()
    (folder / "net.py").write_text(NET)
    (folder / "model.toml").write_text(f'name = "net.py:make"\nwidth = {width}\nmetrics = ["accuracy", "f1"]\n')
    return folder


def test_nodes_train_a_model_from_a_folder_that_their_owners_put_there(tmp_path: Path) -> None:
    at = [model_folder(tmp_path / f"model {name}") for name in ("driver", "north", "south", "west")]
    disclosure = [Disclosure(models={"risk": folder}) for folder in at[1:]]
    model = {"name": "folder", "folder": "risk", "path": str(at[0])}
    data = written(tmp_path, thirds(table()))
    with nodes(tmp_path, data, disclosure) as urls:
        run = fit(urls, model, rounds=40)
        with pytest.raises(
            ConfigurationError, match=r"this node has no model 'other' in its table \[models\]; it has: risk"
        ):
            fit(urls, {**model, "folder": "other"}, rounds=1, out=tmp_path / "2")
    assert run.metrics["accuracy"] > 0.9
    assert set(run.metrics) == {"loss", "accuracy", "f1"}
    other = replace(disclosure[2], models={"risk": model_folder(tmp_path / "wider", 5)})
    with (
        nodes(tmp_path, data, [*disclosure[:2], other]) as urls,
        pytest.raises(DataError, match="the model of node 'west' differs from the driver's: its tensors are 5x30"),
    ):
        fit(urls, model, rounds=1, out=tmp_path / "3")


@pytest.mark.parametrize(
    ("written_", "said"),
    [(None, "cannot be read"), ("name = 3", "needs name"), ('name = "../net.py:make"', "link out of its folder")],
)
def test_a_folder_without_a_model_is_named(tmp_path: Path, written_: str | None, said: str) -> None:
    (tmp_path / "net.py").write_text(NET)
    folder = model_folder(tmp_path / "model")
    (folder / "model.toml").unlink()
    if written_ is not None:
        (folder / "model.toml").write_text(written_)
    told = answer(tmp_path, {"name": "folder", "folder": "mine"}, Disclosure(models={"mine": folder}))
    assert said in told["failure"]["summary"]

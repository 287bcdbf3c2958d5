"""Nodes that train adapters on a base model in a folder of their owner; rows are tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chimera
from chimera.core.errors import ConfigurationError, DataError
from chimera.nodes.workers import TorchWorker
from language_kit import BERT, MARKS, TOKENS, made, written_base
from nodes.served import ask, error_of, serving, settings, write_data

pytestmark = MARKS

TASK = "sequence-classification"
STEADY = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
LORA = {"r": 2, "targets": ["query", "value"]}
ROWS, CLASSES = np.tile(TOKENS[:, :16], (2, 1)), np.arange(24) % 3
HALVES = slice(0, 12), slice(12, 24)


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return written_base(tmp_path_factory.mktemp("base"), BERT, TASK)


def options(base: str, **more: Any) -> dict[str, Any]:
    return {"task": TASK, "path": base, "config": STEADY, "lora": LORA, **more}


def worker(folder: Path, name: str, base: str) -> TorchWorker:
    return TorchWorker("huggingface", options=options(base), settings=settings(folder, name))


@contextmanager
def two_nodes(folder: Path, base: str) -> Iterator[list[str]]:
    with ExitStack() as stack:
        urls = []
        for name, rows in zip(("tree1", "tree2"), HALVES, strict=True):
            write_data(folder / name, ROWS[rows], CLASSES[rows])
            node = worker(folder, name, base)
            urls.append(stack.enter_context(serving(node.app(), node.settings)))
        yield urls


def fit(base: str, out: Path, **given: Any) -> chimera.Run:
    data = chimera.Dataset(ROWS, CLASSES)
    fixed: dict[str, Any] = {"rounds": 4, "optimizer": {"name": "sgd", "lr": 0.5}, "out": out}
    return chimera.train({"name": "huggingface", **options(base)}, (data, data), **{**fixed, **given})


def test_nodes_train_adapters_on_a_base_in_their_own_folder(tmp_path: Path, base: str) -> None:
    """With full batches, two nodes equal one worker with all rows; the driver's base lies in another folder."""
    own = made(TASK, path=base).module
    own.save_pretrained(tmp_path / "elsewhere")
    with two_nodes(tmp_path, str(tmp_path / "elsewhere")) as urls:
        nodes = fit(base, tmp_path / "nodes", engine={"name": "http", "nodes": urls}, workers=2, batch_size=12)
    single = fit(base, tmp_path / "single", engine="simulated", workers=1, batch_size=24)
    np.testing.assert_allclose(nodes.trained.parameters(), single.trained.parameters(), atol=1e-6)
    assert nodes.metrics["loss"] < np.log(3)
    assert nodes.trained.layout.size < 3000


def test_a_node_with_another_base_is_refused(tmp_path: Path, base: str) -> None:
    other = written_base(tmp_path / "other", {**BERT, "initializer_range": 0.1}, TASK)
    with (
        two_nodes(tmp_path, other) as urls,
        pytest.raises(DataError, match=r"the frozen parameters of the model of tree[12], or the alpha of its"),
    ):
        fit(base, tmp_path / "run", engine={"name": "http", "nodes": urls}, workers=2, batch_size=12)


def test_a_node_predicts_probabilities_of_classes(tmp_path: Path, base: str) -> None:
    write_data(tmp_path / "tree1", ROWS, CLASSES)
    node = worker(tmp_path, "tree1", base)
    weights = node.sample()["weights"].tolist()
    body = {"X_pred_columns": [f"x{i}" for i in range(16)], "X_pred_rows": ROWS[:5].tolist(), "weights": weights}
    answer = ask(node.app(), "POST", "/v1/chimera/model/predict", json=body).json()
    np.testing.assert_allclose(np.sum(answer["y_proba_rows"], 1), 1, rtol=1e-5)
    assert answer["y_pred_rows"] == np.argmax(answer["y_proba_rows"], 1).tolist()


@pytest.mark.parametrize(("token", "words"), [(300, "is not below those of"), (2.5, "no token"), (-1, "no token")])
def test_rows_without_tokens_are_refused(tmp_path: Path, base: str, token: float, words: str) -> None:
    rows = ROWS.astype(float)
    rows[0, 3] = token
    write_data(tmp_path / "tree1", rows, CLASSES)
    node = worker(tmp_path, "tree1", base)
    status, _, message = error_of(ask(node.app(), "GET", "/v1/chimera/sgd/request-data-sample"))
    assert status == 422
    assert words in message


@pytest.mark.parametrize("wrong", [{"options": {"task": "causal-lm"}}, {"loss": "mse"}])
def test_a_task_of_other_rows_is_refused(tmp_path: Path, base: str, wrong: dict[str, Any]) -> None:
    given = {"options": options(base), "settings": settings(tmp_path), **wrong}
    with pytest.raises(ConfigurationError, match="a row of a node has one target") as caught:
        TorchWorker("huggingface", **given)
    assert "\n" not in str(caught.value)

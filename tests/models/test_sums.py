"""Sums of an evaluation: those of the parts of a test set give the metrics of the whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import SGDClassifier
from torch import nn

from chimera.core.errors import DataError
from chimera.models.metrics import metric_factories
from chimera.models.sklearn_model import SklearnModel
from chimera.models.sums import Sums, accumulators
from chimera.models.torch_model import TorchModel

COUNTED = ("accuracy", "top-2-accuracy", "f1")
SUMMED = ("mse", "mae", "rmse", "r2")


def parts_of(n: int, cuts: list[int]) -> list[slice]:
    ends = sorted({min(cut, n) for cut in cuts} - {0, n})
    return [slice(begin, end) for begin, end in zip([0, *ends], [*ends, n], strict=True)]


def figures(names: tuple[str, ...], pieces: list[tuple[Any, Any, Any]]) -> dict[str, float]:
    """Return the metrics that follow from the sums of each piece."""
    whole = Sums(accumulators(metric_factories(names)), by_default=False)
    for outputs, predictions, targets in pieces:
        part = Sums(accumulators(metric_factories(names)), by_default=False)
        part.rows = len(targets)
        for metric in part.metrics.values():
            metric.add(outputs, predictions, targets)
        whole.add(part.packed())
    return whole.figures()


@settings(deadline=None, max_examples=60)
@given(
    n=st.integers(1, 40),
    classes=st.integers(2, 5),
    cuts=st.lists(st.integers(0, 40), max_size=4),
    seed=st.integers(0, 999),
)
def test_counts_of_parts_give_the_metrics_of_the_whole_exactly(
    n: int, classes: int, cuts: list[int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    outputs, targets = rng.normal(size=(n, classes)).astype(np.float32), rng.integers(0, classes, n)
    predictions = outputs.argmax(1)
    apart = figures(COUNTED, [(outputs[i], predictions[i], targets[i]) for i in parts_of(n, cuts)])
    assert apart == figures(COUNTED, [(outputs, predictions, targets)])


@settings(deadline=None, max_examples=60)
@given(n=st.integers(1, 40), cuts=st.lists(st.integers(0, 40), max_size=4), seed=st.integers(0, 999))
def test_sums_of_parts_give_the_errors_of_the_whole(n: int, cuts: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    targets = 1e3 + rng.normal(size=(n, 2))
    said = targets + rng.normal(size=(n, 2))
    apart = figures(SUMMED, [(said[i], said[i], targets[i]) for i in parts_of(n, cuts)])
    assert apart == pytest.approx(figures(SUMMED, [(said, said, targets)]), rel=1e-9)


def test_f1_of_several_labels_is_the_mean_over_labels() -> None:
    targets, said = np.array([[1, 0, 1], [0, 0, 1], [1, 0, 0]]), np.array([[1, 0, 0], [1, 0, 1], [1, 0, 0]])
    apart = figures(("f1",), [(said[:1], said[:1], targets[:1]), (said[1:], said[1:], targets[1:])])
    assert apart["f1"] == pytest.approx((4 / 5 + 0 + 2 / 3) / 3)


def models() -> list[Any]:
    rng = np.random.default_rng(1)
    linear = SklearnModel(SGDClassifier(alpha=0.1), classes=np.arange(3), n_features=4)
    linear.load(rng.normal(size=linear.layout.size).astype(np.float32))
    return [TorchModel(nn.Linear(4, 3), metrics=["accuracy", "f1"], evaluate_rows=7, seed=0), linear]


@pytest.mark.parametrize("model", models(), ids=lambda model: type(model).__name__)
def test_a_model_merges_evaluations_of_parts(model: Any) -> None:
    rng = np.random.default_rng(0)
    inputs, targets = rng.normal(size=(50, 4)).astype(np.float32), rng.integers(0, 3, 50)
    parts = [model.sums_of((inputs[i], targets[i])).packed() for i in (slice(0, 11), slice(11, 12), slice(12, 50))]
    merged, whole = model.merged(parts), model.evaluate((inputs, targets))
    assert merged == pytest.approx(whole, rel=1e-6)
    assert {k: v for k, v in merged.items() if k != "loss"} == {k: v for k, v in whole.items() if k != "loss"}


def test_what_a_part_is_without_is_left_out() -> None:
    model = TorchModel(nn.Linear(4, 3), metrics=["accuracy", "f1"], seed=0)
    parts = [dict(model.sums_of((np.ones((5, 4), np.float32), np.arange(5) % 3)).packed()) for _ in range(2)]
    del parts[0]["loss"], parts[1]["f1"]
    assert set(model.merged(parts)) == {"accuracy"}


def test_other_metrics_are_means_of_parts_weighted_by_rows() -> None:
    model = TorchModel(nn.Linear(4, 2), metrics=["auroc", "accuracy"], seed=0)
    rng = np.random.default_rng(0)
    inputs, targets = rng.normal(size=(30, 4)).astype(np.float32), np.arange(30) % 2
    pieces = [(inputs[:10], targets[:10]), (inputs[10:], targets[10:]), (inputs[:5], np.zeros(5, np.int64))]
    parts = [model.sums_of(piece).packed(["auroc"]) for piece in pieces]
    first, second = (model.evaluate(piece)["auroc"] for piece in pieces[:2])
    merged = model.merged(parts, ["auroc"])
    assert set(merged) == {"loss", "accuracy", "auroc_mean_of_nodes"}
    assert merged["auroc_mean_of_nodes"] == pytest.approx((first * 10 + second * 20) / 30)
    assert set(model.merged(parts[2:], ["auroc"])) == {"loss", "accuracy"}
    for bad in ((1.0,), (float("nan"), 3.0), (1.0, -1.0)):
        with pytest.raises(DataError, match="another form"):
            model.merged([{**parts[0], "auroc": bad}], ["auroc"])


def test_metrics_that_need_all_outputs_are_named() -> None:
    assert TorchModel(nn.Linear(4, 2), metrics=["auroc", "f1"]).new_sums().unmerged() == ["auroc"]


@pytest.mark.parametrize(
    "packed",
    [
        {"loss": (1.0,), "accuracy": (1.0, 2.0), "f1": (0.0,)},
        {"loss": (1.0, 2.0), "accuracy": (1.0,), "f1": (-1.0,)},
        {"loss": (1.0, 2.0), "accuracy": (1.0, float("inf")), "f1": (-1.0,)},
        {"loss": (1.0, 2.0), "accuracy": (1.0, 2.0), "f1": (0.0, 1.0, 2.0)},
        {"loss": (1.0, 2.0), "accuracy": (1.0, 2.0), "f1": (0.0, -1.0, 2.0, 1.0)},
        {"loss": (1.0, 2.0), "accuracy": (1.0, 2.0), "f1": (-1.0,), "auroc": (1.0,)},
        {"loss": (1.0, 2.0), "accuracy": "no", "f1": (-1.0,)},
        {"loss": (0.0, 0.0), "accuracy": (0.0, 0.0), "f1": (-1.0,)},
        {"loss": (float("nan"), float("nan")), "accuracy": (1.0, 2.0), "f1": (-1.0,)},
    ],
)
def test_sums_of_another_form_are_refused(packed: Any) -> None:
    model = TorchModel(nn.Linear(4, 2), metrics=["accuracy", "f1"])
    with pytest.raises(DataError, match=r"the sums of an evaluation have (other metrics|another form)"):
        model.merged([packed])

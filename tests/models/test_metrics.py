from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from chimera.core.errors import ConfigurationError, DataError
from chimera.models.metrics import metric_factories
from chimera.models.torch_model import TorchModel


def measured(names, outputs, predictions, targets, cuts=()):
    metrics = {name: make() for name, make in metric_factories(names).items()}
    pieces = zip(*(np.split(array, cuts) for array in (outputs, predictions, targets)), strict=True)
    for piece in pieces:
        if len(piece[0]):
            for metric in metrics.values():
                metric.add(*piece)
    return {name: metric.result() for name, metric in metrics.items()}


@settings(deadline=None)
@given(
    n=st.integers(2, 40),
    columns=st.integers(1, 3),
    offset=st.floats(-1e6, 1e6),
    cuts=st.lists(st.integers(0, 40), max_size=4).map(sorted),
    seed=st.integers(0, 999),
)
def test_values_in_pieces_agree_with_scikit_learn(n, columns, offset, cuts, seed):
    rng = np.random.default_rng(seed)
    targets, predictions = rng.normal(size=(2, n, columns)) + offset
    figures = measured(("mse", "mae", "rmse", "r2"), predictions, predictions, targets, cuts)
    assert figures["mse"] == pytest.approx(sk.mean_squared_error(targets, predictions))
    assert figures["mae"] == pytest.approx(sk.mean_absolute_error(targets, predictions))
    assert figures["rmse"] == pytest.approx(sk.root_mean_squared_error(targets, predictions))
    assert figures["r2"] == pytest.approx(sk.r2_score(targets, predictions), rel=1e-5, abs=1e-5)


@settings(deadline=None)
@given(
    n=st.integers(1, 40),
    classes=st.integers(3, 6),
    k=st.integers(1, 5),
    cuts=st.lists(st.integers(0, 40), max_size=4).map(sorted),
    seed=st.integers(0, 999),
)
def test_classes_in_pieces_agree_with_scikit_learn(n, classes, k, cuts, seed):
    rng = np.random.default_rng(seed)
    outputs, targets = rng.normal(size=(n, classes)), rng.integers(0, classes, n)
    predictions = outputs.argmax(1)
    figures = measured(("accuracy", f"top-{k}-accuracy", sk.accuracy_score), outputs, predictions, targets, cuts)
    assert figures["accuracy"] == pytest.approx(sk.accuracy_score(targets, predictions))
    assert figures["accuracy_score"] == pytest.approx(figures["accuracy"])
    top = np.mean([t in np.argsort(-row)[:k] for row, t in zip(outputs, targets, strict=True)])
    assert figures[f"top-{k}-accuracy"] == pytest.approx(top)


def test_constant_targets_have_the_r2_that_scikit_learn_gives_them():
    flat, other = np.full(4, 2.0), np.array([1.0, 2, 3, 2])
    for predictions in (flat, other):
        assert measured("r2", predictions, predictions, flat)["r2"] == sk.r2_score(flat, predictions)


def test_ties_count_as_correct():
    outputs = np.array([[2.0, 2, 2, 0], [2, 2, 2, 0], [2, 2, 2, 0], [2, 2, 2, 0]])
    targets = np.array(
        [0, 1, 2, 3]
    )  # no output is larger than those of the first three targets; three are larger than that of the last
    figures = measured(("top-1-accuracy", "top-3-accuracy", "top-4-accuracy"), outputs, outputs.argmax(1), targets)
    assert figures == {"top-1-accuracy": 0.75, "top-3-accuracy": 0.75, "top-4-accuracy": 1.0}


def test_user_metric_by_path_and_under_another_name():
    classes = np.array([0, 1, 1])
    path = "sklearn.metrics:zero_one_loss"
    assert measured([path], classes, classes, classes) == {"zero_one_loss": 0}
    assert measured({"wrong": path}, classes, classes, classes) == {"wrong": 0}


def test_errors():
    with pytest.raises(
        ConfigurationError,
        match=r"a metric must be a name, a function \(targets, predictions\) or \(outputs, batch\).*not 3",
    ):
        metric_factories([3])
    with pytest.raises(DataError, match=r"shape \(4, 3\), the targets \(4,\)"):
        measured("mse", np.zeros((4, 3)), np.zeros((4, 3)), np.zeros(4))
    with pytest.raises(ConfigurationError, match="needs one output a class"):
        measured("top-5-accuracy", np.zeros(4), np.zeros(4), np.zeros(4))


def forgets_to_return(targets, predictions):
    np.mean(targets == predictions)


def of_each_class(targets, predictions):
    return sk.f1_score(targets, predictions, average=None)


def of_a_batch(outputs, batch):
    return outputs


@pytest.mark.parametrize(
    ("metric", "found"),
    [
        (forgets_to_return, "the metric 'forgets_to_return' returned None: return one number"),
        (of_each_class, r"the metric 'of_each_class' returned an array of shape \(2,\): return one number"),
        (of_a_batch, r"the metric 'of_a_batch' returned an array of shape \(3, 2\): return one number"),
    ],
)
def test_a_metric_that_returns_no_number_is_named(metric, found):
    (accumulator,) = (make() for make in metric_factories([metric]).values())
    classes, outputs = np.array([0, 1, 1]), torch.zeros(3, 2)
    if metric is of_a_batch:
        evaluate = partial(accumulator.add_batch, outputs, (classes, classes), 0.0, 3)
    else:
        accumulator.add(outputs.numpy(), classes, classes)
        evaluate = accumulator.result
    with pytest.raises(ConfigurationError, match=found):
        evaluate()


@settings(deadline=None, max_examples=30)
@given(n=st.integers(4, 40), classes=st.integers(2, 4), cut=st.integers(0, 40), seed=st.integers(0, 999))
def test_f1_and_auroc_in_pieces_agree_with_scikit_learn(n, classes, cut, seed):
    rng = np.random.default_rng(seed)
    outputs = rng.normal(size=(n, classes)).astype(np.float32)
    targets = np.r_[np.arange(classes), rng.integers(0, classes, max(n - classes, 0))][:n]
    predictions = outputs.argmax(1)
    figures = measured(("f1", "auroc"), outputs, predictions, targets, [min(cut, n)])
    shares = np.exp(outputs.astype(float)) / np.exp(outputs.astype(float)).sum(1, keepdims=True)
    if classes == 2:
        assert figures["f1"] == pytest.approx(sk.f1_score(targets, predictions, zero_division=0.0))
        assert figures["auroc"] == pytest.approx(sk.roc_auc_score(targets, shares[:, 1]))
    else:
        assert figures["f1"] == pytest.approx(sk.f1_score(targets, predictions, average="macro", zero_division=0.0))
        assert figures["auroc"] == pytest.approx(sk.roc_auc_score(targets, shares, multi_class="ovr"))


def test_targets_of_minus_100_do_not_count():
    outputs = np.zeros((2, 3, 2), np.float32)
    predictions, targets = np.array([[0, 1, 1], [0, 0, 1]]), np.array([[0, -100, 0], [0, 1, -100]])
    assert measured("accuracy", outputs, predictions, targets) == {"accuracy": 0.5}


def test_objects_of_torchmetrics_get_read_only_targets_without_a_warning() -> None:
    torchmetrics, torch = (pytest.importorskip(name) for name in ("torchmetrics", "torch"))
    labels = np.arange(12) % 3
    labels.flags.writeable = False
    metric = {"f1": torchmetrics.F1Score("multiclass", num_classes=3)}
    model = TorchModel(torch.nn.Linear(2, 3), metrics=metric)
    assert set(model.evaluate((np.ones((12, 2), np.float32), labels))) == {"loss", "f1"}

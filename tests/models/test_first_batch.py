"""Checks of losses on the first batch: sums over its rows, outputs before or after a softmax; and losses without errors."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import chimera
from chimera.core.errors import ConfigurationError
from chimera.models.first_batch import check_loss
from chimera.models.losses import make_loss
from chimera.models.torch_model import TorchModel

RNG = np.random.default_rng(0)
X = RNG.standard_normal((12, 4)).astype(np.float32)
Y = RNG.integers(0, 3, 12)
LAST = np.where(np.arange(12) < 9, -100, Y)  # of the targets only the last three count
WEIGHTS = torch.tensor([0.2, 1.0, 5.0])


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def summed(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="sum")


def summed_rows(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs - F.one_hot(targets, 3)) ** 2).mean(1).sum()


class SummedModule(nn.Module):
    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return -outputs.log_softmax(1)[torch.arange(len(targets)), targets].sum()


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(4, 2), nn.Linear(2, 4)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        mean = self.encode(inputs)
        return self.decode(mean), mean


def variational(outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
    return F.mse_loss(outputs[0], targets, reduction="sum") + (outputs[1] ** 2).sum() / 2


@pytest.mark.parametrize("loss", [summed, summed_rows, SummedModule(), partial(summed)])
@pytest.mark.parametrize("rows", [2, 3, 12])
def test_a_loss_that_sums_over_the_batch_is_refused_at_the_first_batch(loss: Any, rows: int) -> None:
    with pytest.raises(ConfigurationError, match=r"sums over the rows of a batch: .*return the mean") as caught:
        TorchModel(network(), loss=loss).gradient((X[:rows], Y[:rows]))
    assert "\n" not in str(caught.value)


def test_a_sum_of_several_outputs_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'variational' sums over the rows"):
        TorchModel(Pair(), loss=variational).gradient((X, X))
    with pytest.raises(ConfigurationError, match="'variational' sums over the rows"):
        TorchModel(Pair(), loss=variational).gradient((torch.from_numpy(X), torch.from_numpy(X)))


def test_a_batch_of_one_row_is_too_small_for_the_check() -> None:
    model = TorchModel(network(), loss=summed)
    model.gradient((X[:1], Y[:1]))
    with pytest.raises(ConfigurationError, match="sums over the rows"):
        model.gradient((X, Y))


def ignoring(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, ignore_index=-100)


def masked(outputs: Tensor, targets: Tensor) -> Tensor:
    counts = targets >= 0
    rows = F.cross_entropy(outputs, targets.clamp(min=0), reduction="none")
    return (rows * counts).sum() / counts.sum().clamp(min=1)


def weighted(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, weight=WEIGHTS, ignore_index=-100)


def contrastive(outputs: Tensor, targets: Tensor) -> Tensor:
    same = torch.zeros(len(targets), len(targets)) * outputs.sum()  # as from equal embeddings: log(n)
    return F.cross_entropy(same, torch.arange(len(targets)))


def standardized(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss((outputs - outputs.mean(0)) / outputs.std(0), F.one_hot(targets.clamp(min=0), 3).float())


def dice(outputs: Tensor, targets: Tensor) -> Tensor:
    found, wanted = outputs.softmax(1), F.one_hot(targets.clamp(min=0), 3)
    return 1 - 2 * (found * wanted).sum() / (found + wanted).sum()


def penalized(outputs: Tensor, targets: Tensor) -> Tensor:
    return ignoring(outputs, targets) + 0.1 * outputs.abs().max()


def root(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(outputs, F.one_hot(targets.clamp(min=0), 3).float()).sqrt()


def nothing(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs * 0).mean()


def whole_batch(outputs: Tensor, targets: Tensor) -> Tensor:
    assert len(outputs) == len(targets) == 12
    return ignoring(outputs, targets)


@pytest.mark.parametrize(
    "loss",
    [ignoring, masked, weighted, contrastive, standardized, dice, penalized, root, nothing, whole_batch],
)
@pytest.mark.parametrize("targets", [Y, LAST, LAST[::-1].copy()], ids=["all", "last", "first"])
def test_other_losses_train(loss: Callable[..., Tensor], targets: Any) -> None:
    TorchModel(network(), loss=loss).gradient((X, targets))


@pytest.mark.parametrize("rows", range(2, 9))
def test_contrastive_losses_of_any_batch_size_train(rows: int) -> None:
    TorchModel(network(), loss=contrastive).gradient((X[:rows], Y[:rows]))


class Counting(nn.Module):
    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        Counting.calls += 1
        self.mean += 1
        return ignoring(outputs + torch.rand_like(outputs) + random.random() + np.random.random(), targets)


def test_the_check_happens_once_and_changes_neither_the_loss_nor_random_numbers() -> None:
    loss = Counting()
    model = TorchModel(network(), loss=loss)
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    model.gradient((X, Y))
    found = torch.rand(()).item(), random.random(), np.random.random()
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    torch.rand(12, 3), random.random(), np.random.random()
    assert found == (torch.rand(()).item(), random.random(), np.random.random())
    assert loss.mean == 1
    Counting.calls = 0
    model.gradient((X, Y))
    assert Counting.calls == 1


class Frozen(dict[str, Tensor]):
    """Outputs that cannot be changed, as those of transformers."""

    def update(self, *_: Any, **__: Any) -> None:
        raise TypeError("these outputs cannot be changed")


class Named(nn.Sequential):
    def forward(self, inputs: Tensor) -> Any:
        return Frozen(logits=super().forward(inputs))


def test_outputs_that_cannot_be_copied_are_not_checked() -> None:
    model = TorchModel(Named(*network()), loss=lambda outputs, targets: F.cross_entropy(outputs["logits"], targets))
    assert np.isfinite(model.gradient((X, Y))[1])


def test_a_run_ends_with_the_error(tmp_path: Path) -> None:
    model = TorchModel(network(), loss=summed)
    with pytest.raises(ConfigurationError, match="the loss 'summed' sums over the rows"):
        chimera.train(model, (X, Y), engine="simulated", workers=2, epochs=1, progress=False, out=str(tmp_path / "run"))


@pytest.mark.parametrize("loss", ["nll", nn.NLLLoss()])
def test_nll_needs_logarithms_of_probabilities(loss: Any) -> None:
    with pytest.raises(ConfigurationError, match="'nll' needs logarithms of probabilities, as after a log_softmax"):
        TorchModel(network(), loss=loss).gradient((X, Y))
    TorchModel(nn.Sequential(network(), nn.LogSoftmax(1)), loss=loss).gradient((X, Y))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("loss", ["cross-entropy", nn.CrossEntropyLoss(), F.cross_entropy])
def test_cross_entropy_refuses_outputs_after_a_softmax(tmp_path: Path, loss: Any) -> None:
    model = TorchModel(nn.Sequential(network(), nn.Softmax(1)), loss=loss)
    with pytest.raises(ConfigurationError, match="are probabilities, as after a softmax"):
        chimera.train(model, (X, Y), workers=1, batch_size=4, rounds=1, progress=False, out=tmp_path / "run")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("last", [nn.LogSoftmax(1), nn.ReLU(), nn.Sigmoid()])
def test_cross_entropy_takes_other_outputs(tmp_path: Path, last: nn.Module) -> None:
    model = TorchModel(nn.Sequential(network(), last), loss="cross-entropy")
    run = chimera.train(model, (X, Y), workers=1, batch_size=4, rounds=1, progress=False, out=tmp_path / "run")
    assert np.isfinite(run.metrics["loss"])


def test_a_single_sample_and_undefined_outputs_do_not_tell_probabilities() -> None:
    loss, one = make_loss("cross-entropy"), torch.tensor([[0.25, 0.75]])
    value = torch.tensor(0.0)
    assert not check_loss(loss, one, torch.tensor([1]), value)
    for row in ([0.5, 1.5], [torch.nan, torch.nan]):
        assert check_loss(loss, torch.tensor([[0.25, 0.75], row]), torch.tensor([1, 0]), value)


BINARY = (Y > 0).astype(np.float32)


@pytest.mark.parametrize("loss", ["bce-with-logits", nn.BCEWithLogitsLoss(), F.binary_cross_entropy_with_logits])
@pytest.mark.parametrize("last", [[nn.Sigmoid()], [nn.Sigmoid(), nn.Flatten(0)]])
def test_bce_with_logits_refuses_outputs_after_a_sigmoid(loss: Any, last: list[nn.Module]) -> None:
    model = TorchModel(nn.Sequential(nn.Linear(4, 1), *last), loss=loss)
    with pytest.raises(ConfigurationError, match="are probabilities, as after a sigmoid"):
        model.gradient((X, BINARY))


@pytest.mark.parametrize("last", [nn.Identity(), nn.Flatten(0), nn.Hardtanh(0, 1), nn.ReLU()])
def test_bce_with_logits_takes_other_outputs(last: nn.Module) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Sigmoid(), nn.Linear(4, 1), last)
    assert np.isfinite(TorchModel(module, loss="bce-with-logits").gradient((X, BINARY))[1])


@pytest.mark.parametrize(
    "change",
    [lambda o: o[:, 0], lambda o: o.permute(1, 0)[0], lambda o: o.transpose(0, 1)[0], lambda o: o.t()[0],
     lambda o: o[:, :1].clone(), lambda o: o.half().float()[:, 0], lambda o: o.reshape(-1)],
)  # fmt: skip
def test_a_sigmoid_is_found_before_operations_that_change_no_value(change: Any) -> None:
    class Probable(nn.Linear):
        def forward(self, inputs: Tensor) -> Any:
            return change(super().forward(inputs).sigmoid())

    with pytest.raises(ConfigurationError, match="are probabilities, as after a sigmoid"):
        TorchModel(Probable(4, 1), loss="bce-with-logits").gradient((X, BINARY))


@pytest.mark.parametrize(
    ("last", "loss", "targets"),
    [
        ([nn.Linear(3, 1), nn.Sigmoid()], "bce-with-logits", BINARY),
        ([nn.Softmax(1)], "cross-entropy", Y),
        ([], "nll", Y),
        ([], summed, Y),
    ],
    ids=["sigmoid", "softmax", "nll", "sum"],
)
def test_an_evaluation_checks_nothing_and_leaves_the_check_to_training(last: Any, loss: Any, targets: Any) -> None:
    """Finished runs of earlier versions are evaluated as before. An evaluation turned the check of a sigmoid off."""
    metrics = {"rows": lambda targets, _: float(len(targets))}
    model = TorchModel(nn.Sequential(network(), *last), loss=loss, metrics=metrics)
    assert np.isfinite(model.evaluate((X, targets))["loss"])
    with pytest.raises(ConfigurationError, match=r"are probabilities|needs logarithms|sums over the rows"):
        model.gradient((X, targets))

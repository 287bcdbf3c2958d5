"""Lightning modules train by their own steps: the same gradients as in plain PyTorch, and metrics as they log them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from chimera.core.errors import ConfigurationError
from chimera.models.compute import Compute
from chimera.models.own_optimizer import Position, RunLength
from chimera.models.torch_model import TorchModel
from chimera.training.optimizers.flat_optimizer import avoid_compiler_import
from lightning_kit import LIBRARIES, X, Y, base_of, made, plain

BATCH = X[:10], Y[:10]
LENGTH = RunLength(steps=40, epochs=4.0)


@pytest.fixture(scope="module", autouse=True)
def light_optimizers() -> None:
    """Let `torch.optim` not import the compiler, as in a run."""
    avoid_compiler_import()


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> str:
    base_of(request.param)  # imports the library, which takes seconds
    return str(request.param)


def test_a_gradient_is_that_of_its_training_step(library: str) -> None:
    model, reference = TorchModel(made(library)()), TorchModel(plain())
    gradient, loss = model.gradient(BATCH)
    expected, expected_loss = reference.gradient(BATCH)
    np.testing.assert_array_equal(gradient, expected)
    assert loss == expected_loss


def test_an_evaluation_reports_what_the_validation_step_logs_as_means_over_samples(library: str) -> None:
    model = TorchModel(made(library)(), evaluate_rows=4)
    found, expected = model.evaluate(BATCH), TorchModel(plain()).evaluate(BATCH)
    assert set(found) == {"loss", "val_loss", "val_acc"}
    assert found["loss"] == found["val_loss"] == pytest.approx(expected["loss"])
    assert found["val_acc"] == pytest.approx(expected["accuracy"])


def logs_only(self: Any, batch: Any, batch_idx: int) -> None:
    self.log("val/loss", F.cross_entropy(self(batch[0]), batch[1]), batch_size=len(batch[1]))
    self.log("hidden", 1.0, on_step=True, on_epoch=False)


def test_the_loss_may_be_logged_and_not_returned(library: str) -> None:
    found = TorchModel(made(library, validation_step=logs_only)(), evaluate_rows=4).evaluate(BATCH)
    assert set(found) == {"loss", "val/loss"}
    assert found["loss"] == pytest.approx(TorchModel(plain()).evaluate(BATCH)["loss"])


def test_without_a_validation_step_the_test_step_counts_or_the_training_step() -> None:
    found = TorchModel(made("none", validation_step=None, test_step=logs_only)()).evaluate(BATCH)
    assert "val/loss" in found


def test_an_epoch_end_may_log_and_its_values_are_not_averaged(library: str) -> None:
    def remember(self: Any) -> None:
        self.seen = 0

    def step(self: Any, batch: Any) -> Any:
        self.seen += len(batch[0])
        return F.cross_entropy(self(batch[0]), batch[1])

    def end(self: Any) -> None:
        self.log("seen", self.seen)

    hooks = {"validation_step": step, "on_validation_epoch_start": remember, "on_validation_epoch_end": end}
    model = TorchModel(made(library, **hooks)(), evaluate_rows=3)
    assert [model.evaluate(BATCH)["seen"] for _ in range(2)] == [10.0, 10.0]


@pytest.mark.parametrize("together", [False, True], ids=["metric", "collection"])
def test_objects_of_torchmetrics_accumulate_over_an_evaluation(library: str, together: bool) -> None:
    torchmetrics = pytest.importorskip("torchmetrics", reason="torchmetrics is not installed")

    class Measured(made(library)):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.acc = torchmetrics.classification.MulticlassF1Score(3, average="macro")
            self.both = torchmetrics.MetricCollection({
                "val_f1": torchmetrics.classification.MulticlassF1Score(3, average="macro"),
                "val_recall": torchmetrics.classification.MulticlassRecall(3, average="macro"),
            })  # fmt: skip

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            outputs = self(batch[0])
            self.acc(outputs, batch[1])
            self.log("train_f1", self.acc)
            return F.cross_entropy(outputs, batch[1])

        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            outputs = self(batch[0])
            if together:
                self.both.update(outputs, batch[1])
                self.log_dict(self.both)
            else:
                self.acc.update(outputs, batch[1])
                self.log("val_f1", self.acc)
            return F.cross_entropy(outputs, batch[1])

    model = TorchModel(Measured(), evaluate_rows=3)
    model.gradient((X[20:], Y[20:]))  # must not count in the evaluation
    expected = TorchModel(plain(), metrics={"val_f1": "f1"}).evaluate(BATCH)["val_f1"]
    for _ in range(2):
        assert model.evaluate(BATCH)["val_f1"] == pytest.approx(expected)


def test_a_step_leaves_the_module_as_it_was_and_it_can_be_sent_and_copied(library: str) -> None:
    model = TorchModel(made(library)())
    before = set(vars(model.module))
    gradient = model.gradient(BATCH)[0].copy()
    figures = model.evaluate(BATCH)
    assert set(vars(model.module)) == before
    for other in (pickle.loads(pickle.dumps(model)), TorchModel(copy.deepcopy(model.module))):
        np.testing.assert_array_equal(other.gradient(BATCH)[0], gradient)
        assert other.evaluate(BATCH) == figures


def test_a_step_reads_its_position_from_the_trainer(library: str) -> None:
    seen = []

    def step(self: Any, batch: Any, batch_idx: int) -> Any:
        trainer = self.trainer
        seen.append((batch_idx, trainer.global_step, trainer.current_epoch, trainer.global_rank, trainer.training))
        assert self.trainer.logger is None
        return F.cross_entropy(self(batch[0]), batch[1])

    model = TorchModel(made(library, training_step=step)())
    assert model.locate is not None
    model.locate(Position(rank=2, step=13, epoch=1, batch=3))
    model.gradient(BATCH)
    assert seen == [(3, 13, 1, 2, True)]


def test_its_own_prediction_step_makes_the_predictions(library: str) -> None:
    scores = TorchModel(plain()).module(torch.from_numpy(X)).detach().numpy()
    np.testing.assert_array_equal(TorchModel(made(library)()).predict(X), scores.argmax(1))
    own = made(library, predict_step=lambda self, batch, batch_idx: self(batch).softmax(1))
    np.testing.assert_allclose(TorchModel(own()).predict(X).argmax(1), scores.argmax(1))


def test_hooks_around_the_transfer_change_the_batch(library: str) -> None:
    def doubled(self: Any, batch: Any, dataloader_idx: int) -> Any:
        return 2 * batch[0], batch[1]

    gradient, _ = TorchModel(made(library, on_after_batch_transfer=doubled)()).gradient(BATCH)
    np.testing.assert_array_equal(gradient, TorchModel(plain()).gradient((2 * BATCH[0], BATCH[1]))[0])


def test_hooks_that_a_run_does_not_call_are_named(library: str) -> None:
    own = made(library, on_train_epoch_end=lambda self: None, setup=lambda self, stage: None)
    assert TorchModel(own()).notice == "Classifier: not called in a run: setup, on_train_epoch_end"
    assert TorchModel(made(library)()).notice is None


def manual(self: Any) -> None:
    made_by = super(type(self), self)
    made_by.__init__()  # type: ignore[misc]
    self.automatic_optimization = False


NOTHING: Callable[..., Any] = lambda *_, **__: None  # noqa: E731


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ({"__init__": manual}, "automatic_optimization = False"),
        ({"optimizer_step": NOTHING}, "has the hook optimizer_step"),
        ({"on_after_backward": NOTHING}, "has the hook on_after_backward"),
        ({"training_step": lambda self, dataloader_iter: None}, "needs dataloader_iter"),
    ],
)
def test_a_module_that_needs_the_trainer_of_lightning_is_refused(
    library: str, methods: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        TorchModel(made(library, **methods)())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ({"training_step": NOTHING}, "training_step of Classifier returned NoneType without a loss"),
        ({"training_step": lambda self, batch: self.trainer.datamodule}, "reads self.trainer.datamodule"),
        ({"validation_step": NOTHING}, "validation_step of Classifier returned no loss, and logged none"),
        ({"validation_step": lambda self, batch: self.log("a", batch[0])}, "logs 'a' as Tensor: log a number"),
        ({"validation_step": lambda self, batch: self.log("a", None)}, "logs 'a' as NoneType: log a number"),
        ({"validation_step": lambda self, batch: self.log("a", 1, reduce_fx="max")}, "reduce_fx = 'max'"),
    ],
)
def test_what_a_step_cannot_do_is_one_line(library: str, methods: dict[str, Any], message: str) -> None:
    model = TorchModel(made(library, **methods)())
    with pytest.raises(ConfigurationError, match=message) as caught:
        _ = model.gradient(BATCH), model.evaluate(BATCH)
    assert "\n" not in str(caught.value)


def sgd(self: Any, parameters: Any = None) -> Any:
    return torch.optim.SGD(self.parameters() if parameters is None else parameters, lr=0.1)


@pytest.mark.parametrize(
    ("configured", "message"),
    [
        (lambda self: [sgd(self), sgd(self)], "returns 2 optimizers: a run steps all parameters by one"),
        (lambda self: ([sgd(self), sgd(self)], []), "returns 2 optimizers"),
        (lambda self: [{"optimizer": sgd(self)}, {"optimizer": sgd(self)}], "returns 2 optimizers"),
        (lambda self: ([sgd(self)], [1, 2]), "returns 2 schedulers"),
        (lambda self: ([sgd(self)], [3]), "the scheduler of Classifier is int"),
        (
            lambda self: ([sgd(self)], [torch.optim.lr_scheduler.StepLR(sgd(self), 1)]),
            "the scheduler of Classifier is StepLR: give a scheduler of torch.optim.lr_scheduler, of the optimizer",
        ),
        (
            lambda self: {"optimizer": sgd(self), "lr_scheduler": {"scheduler": None, "interval": "batch"}},
            "has interval 'batch' and frequency 1",
        ),
        (lambda self: {"lr": 3}, "returns dict: return an optimizer"),
        (lambda self: sgd(self, self.net[0].parameters()), r"not have the parameter 'net.2.weight' \(2 are missing\)"),
        (lambda self: sgd(self, self.trainer.model.parameters()), "reads self.trainer.model"),
    ],
)
def test_optimizers_that_a_run_cannot_use_are_refused(library: str, configured: Any, message: str) -> None:
    model = TorchModel(made(library, configure_optimizers=configured)())
    with pytest.raises(ConfigurationError, match=message) as caught:
        model.own_optimizer(LENGTH)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "form",
    [
        lambda optimizer, scheduler: {"optimizer": optimizer, "lr_scheduler": scheduler, "monitor": "val_acc"},
        lambda optimizer, scheduler: ([optimizer], [{"scheduler": scheduler, "monitor": "val_acc"}]),
        lambda optimizer, scheduler: {
            "optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "val_acc"}
        },
        lambda optimizer, scheduler: [{"optimizer": optimizer, "lr_scheduler": scheduler, "monitor": "val_acc"}],
    ],
)  # fmt: skip
def test_each_form_of_lightning_names_optimizer_scheduler_and_metric(form: Any) -> None:
    def configured(self: Any) -> Any:
        optimizer = sgd(self)
        return form(optimizer, torch.optim.lr_scheduler.StepLR(optimizer, self.trainer.max_epochs))

    own = TorchModel(made("none", configure_optimizers=configured)()).own_optimizer(LENGTH)
    assert own is not None
    assert isinstance(own.optimizer, torch.optim.SGD)
    assert (own.scheduler.step_size, own.monitor, own.interval, own.frequency) == (4, "val_acc", "epoch", 1)


def test_none_and_plain_modules_bring_no_optimizer() -> None:
    assert TorchModel(made("none", configure_optimizers=NOTHING)()).own_optimizer(LENGTH) is None
    assert TorchModel(plain()).own_optimizer(LENGTH) is None
    assert TorchModel(plain()).locate is None


def test_compilation_and_parts_are_refused() -> None:
    model = TorchModel(made("none")())
    with pytest.raises(
        ConfigurationError, match=r"compile calls the layers .* Classifier trains by its own training_step"
    ):
        model.configure(Compute(compile=True))
    with pytest.raises(ConfigurationError, match="a strategy that cuts the model into parts calls the layers"):
        model.part_of(model.module.net)


def test_a_module_inside_logs_too(library: str) -> None:
    inner_class = made(library)

    class Outer(made(library)):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = inner_class()

        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            return self.net.validation_step(batch, batch_idx)

    assert isinstance(Outer().net, nn.Module)
    assert "val_acc" in TorchModel(Outer()).evaluate(BATCH)

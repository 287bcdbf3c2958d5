"""Runs of Lightning modules: their optimizer and schedule step, their metrics are in the history, on all workers alike."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import chimera
import lightning_kit
from chimera.core.errors import ConfigurationError
from chimera.data.order import GlobalOrder
from chimera.models.own_optimizer import OwnOptimizer, RunLength
from chimera.training.optimizers.own import suggestion
from chimera.training.optimizers.schedule import Schedule
from lightning_kit import LIBRARIES, X, Y, made

DATA = (X[:48], Y[:48]), (X[48:], Y[48:])
schedulers = torch.optim.lr_scheduler


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., chimera.Run]:
    def train(model: Any, name: str = "run", **options: Any) -> chimera.Run:
        given = {"engine": "simulated", "workers": 1, "batch_size": 12, "epochs": 3, "strategy": "all-reduce"}
        return chimera.train(model, DATA, **{**given, **options}, out=tmp_path / name)

    return train


def weights(run: chimera.Run) -> Any:
    return run.trained.parameters()


def table_of(run: chimera.Run) -> Any:
    return tomllib.loads((run.run_dir / "experiment.toml").read_text())["train"]


@pytest.mark.parametrize("library", [*LIBRARIES, pytest.param("pytorch_lightning", marks=pytest.mark.long)])
def test_its_optimizer_steps_as_the_same_optimizer_of_the_run(train: Any, library: str) -> None:
    own = train(made(library)(), "own")
    given = train(made(library)(), "given", optimizer={"name": "sgd", "lr": 0.1, "momentum": 0.9})
    np.testing.assert_array_equal(weights(own), weights(given))
    assert table_of(own)["optimizer"] == {"name": "sgd", "lr": 0.1, "momentum": 0.9}


def test_an_optimizer_of_the_run_replaces_that_of_the_module_or_changes_its_options(train: Any) -> None:
    changed = train(made("none")(), "changed", optimizer={"lr": 0.01})
    assert table_of(changed)["optimizer"] == {"name": "sgd", "lr": 0.01, "momentum": 0.9}
    named = train(made("none", configure_optimizers=lambda self: 1 / 0)(), "named", optimizer="adam")
    assert table_of(named)["optimizer"] == "adam"


def test_a_line_states_which_optimizer_steps_and_which_hooks_are_not_called(train: Any) -> None:
    lines: list[str] = []

    class Notices(chimera.Callback):
        def on_notice(self, notice: str) -> None:
            lines.append(notice)

    module = made("none", on_train_epoch_end=lambda self: None)()
    train(module, callbacks=[Notices()], rounds=1)
    assert lines == [
        "optimizer: sgd (lr 0.1, momentum 0.9) on workers",
        "Classifier: not called in a run: on_train_epoch_end",
    ]


@pytest.mark.parametrize("library", LIBRARIES)
def test_workers_compute_what_one_worker_computes_on_the_whole_batch(train: Any, library: str) -> None:
    one = train(made(library)(), "one")
    four = train(made(library)(), "four", workers=4, batch_size=3)
    np.testing.assert_allclose(weights(four), weights(one), atol=1e-6)
    assert four.metrics == pytest.approx(one.metrics, abs=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("strategy", ["all-reduce", "parameter-server", "fed-avg"])
def test_processes_compute_the_same_bits(train: Any, library: str, strategy: str) -> None:
    simulated, local = (
        train(made(library)(), engine, engine=engine, workers=2, batch_size=6, strategy=strategy)
        for engine in ("simulated", "local")
    )
    np.testing.assert_array_equal(weights(local), weights(simulated))
    assert set(local.metrics) >= {"loss", "val_loss", "val_acc"}


def test_what_it_logs_is_in_the_history_and_may_be_monitored_and_targeted(train: Any) -> None:
    run = train(made("none")(), monitor="val_acc", keep="best", target={"val_loss": 1e9}, epochs=3)
    assert run.stopped_by == "target"
    rows = [json.loads(line) for line in (run.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["val_acc"] == run.metrics["val_acc"]


def test_a_logged_name_of_a_counter_is_refused(train: Any) -> None:
    def step(self: Any, batch: Any) -> Any:
        self.log("epoch", 1.0)
        return self(batch[0]).sum()

    with pytest.raises(ConfigurationError, match="'epoch' has the name of another column"):
        train(made("none", validation_step=step)())


def test_steps_read_the_epoch_and_the_number_of_their_batch(train: Any) -> None:
    def step(self: Any, batch: Any, batch_idx: int) -> Any:
        lightning_kit.SEEN.append(
            (batch_idx, self.trainer.current_epoch, self.trainer.global_step, self.trainer.global_rank)
        )
        return self.net(batch[0]).square().mean()

    def validation(self: Any, batch: Any, batch_idx: int) -> Any:
        lightning_kit.SEEN.append(("validated", self.trainer.current_epoch))
        return self.net(batch[0]).square().mean()

    lightning_kit.SEEN.clear()
    train(made("none", training_step=step, validation_step=validation)(), workers=2, epochs=2)  # two batches an epoch
    seen = lightning_kit.SEEN
    assert [each for each in seen if each[0] != "validated"] == [
        (b, e, 2 * e + b, rank) for e in range(2) for b in range(2) for rank in range(2)
    ]
    assert [each for each in seen if each[0] == "validated"] == [("validated", 0), ("validated", 1)]


def rates_of_torch(scheduler: Any, optimizer: Any, length: RunLength, interval: str) -> list[float]:
    """Return the learning rate of each step, as a loop of torch has it."""
    rates, per_epoch = [], length.steps // int(length.epochs)  # type: ignore[operator, arg-type]
    for step in range(length.steps):  # type: ignore[arg-type]
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if interval == "step" or (step + 1) % per_epoch == 0:
            scheduler.step()
    return rates


SCHEDULERS: dict[str, Callable[[Any, int], Any]] = {
    "step": lambda optimizer, n: schedulers.StepLR(optimizer, max(n // 3, 1), gamma=0.5),
    "multi-step": lambda optimizer, n: schedulers.MultiStepLR(optimizer, [n // 4, n // 2]),
    "exponential": lambda optimizer, n: schedulers.ExponentialLR(optimizer, 0.9),
    "cosine": lambda optimizer, n: schedulers.CosineAnnealingLR(optimizer, n, eta_min=0.01),
    "warm-up": lambda optimizer, n: schedulers.LambdaLR(optimizer, lambda t: min(t / max(n // 2, 1), 1.0)),
    "linear": lambda optimizer, n: schedulers.LinearLR(optimizer, total_iters=n),
    "one-cycle": lambda optimizer, n: schedulers.OneCycleLR(optimizer, 0.3, total_steps=n + 1, cycle_momentum=False),
    "sequential": lambda optimizer, n: schedulers.SequentialLR(
        optimizer,
        [schedulers.ConstantLR(optimizer, 0.1, total_iters=n), schedulers.ExponentialLR(optimizer, 0.8)],
        milestones=[2],
    ),
}  # fmt: skip


def sgd(**options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], **{"lr": 0.2, "momentum": 0.9, **options})


@pytest.mark.parametrize("interval", ["epoch", "step"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_any_scheduler_becomes_the_same_learning_rates(name: str, interval: Any) -> None:
    length = RunLength(steps=60, epochs=6.0)
    count = 60 if interval == "step" else 6
    optimizer, same = sgd(), sgd()
    table, _ = suggestion(OwnOptimizer(optimizer, SCHEDULERS[name](optimizer, count), interval), length)
    expected = rates_of_torch(SCHEDULERS[name](same, count), same, length, interval)
    schedule = Schedule.of({**table["schedule"]})
    run = Schedule(schedule.decay, steps=length.steps, every=schedule.every, factors=schedule.factors)
    np.testing.assert_allclose([table["lr"] * run.at(step) for step in range(60)], expected, rtol=1e-6)


def test_a_long_schedule_by_steps_is_sampled() -> None:
    optimizer, length = sgd(), RunLength(steps=5000, epochs=2.0)
    scheduler = schedulers.CosineAnnealingLR(optimizer, 5000)
    table, _ = suggestion(OwnOptimizer(optimizer, scheduler, "step"), length)
    assert len(table["schedule"]["factors"]) == 1000
    schedule = Schedule(
        "table", steps=5000, every=table["schedule"]["every"], factors=tuple(table["schedule"]["factors"])
    )
    cosine = (1 + np.cos(np.pi * np.arange(5000) / 5000)) / 2
    np.testing.assert_allclose([schedule.at(step) for step in range(5000)], cosine, atol=2e-3)


def test_a_scheduler_trains_as_the_loop_of_torch(train: Any) -> None:
    def configured(self: Any) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.2, momentum=0.9)
        return [optimizer], [schedulers.CosineAnnealingLR(optimizer, self.trainer.max_epochs)]

    run = train(made("none", configure_optimizers=configured)())
    model, order = chimera.TorchModel(made("none")()), GlobalOrder(48, world_size=1, rank=0, batch_size=12, seed=0)
    parameter = model.flat_parameter()
    optimizer = torch.optim.SGD([parameter], lr=0.2, momentum=0.9)
    scheduler = schedulers.CosineAnnealingLR(optimizer, 3)
    for step in range(12):
        rows = order.batch(step)
        parameter.grad = torch.from_numpy(model.gradient((X[rows], Y[rows]))[0])
        optimizer.step()
        if (step + 1) % 4 == 0:
            scheduler.step()
    np.testing.assert_allclose(weights(run), model.parameters(), atol=1e-6)


class Batches:
    """The batches that a run reads, four in each epoch."""

    def __init__(self) -> None:
        self._order, self._step = GlobalOrder(48, world_size=1, rank=0, batch_size=12, seed=0), 0

    def __iter__(self) -> Iterator[Any]:
        for _ in range(4):
            rows = self._order.batch(self._step)
            self._step += 1
            yield torch.from_numpy(X[rows]), torch.from_numpy(Y[rows])

    def __len__(self) -> int:
        return 4


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # of the Trainer, about this loader
@pytest.mark.long
def test_a_run_equals_the_trainer_of_lightning(train: Any, tmp_path: Path) -> None:
    library = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed: pip install lightning")

    def configured(self: Any) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.02)
        steps = self.trainer.estimated_stepping_batches
        scheduler = schedulers.OneCycleLR(optimizer, 0.05, total_steps=steps, cycle_momentum=False)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    module = made("lightning.pytorch", configure_optimizers=configured)
    run = train(module())
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = library.Trainer(max_epochs=3, accelerator="cpu", default_root_dir=tmp_path, **quiet)
    trained, part = module(), torch.utils.data.TensorDataset(torch.from_numpy(X[48:]), torch.from_numpy(Y[48:]))
    trainer.fit(trained, Batches(), torch.utils.data.DataLoader(part, batch_size=5))
    np.testing.assert_allclose(weights(run), chimera.TorchModel(trained).parameters(), atol=1e-6)
    assert {name: float(trainer.callback_metrics[name]) for name in ("val_loss", "val_acc")} == pytest.approx(
        {name: run.metrics[name] for name in ("val_loss", "val_acc")}, abs=1e-5
    )


def _two_groups(optimizer: Any) -> Any:
    """Add a group of parameters with the options of the first one; return the optimizer."""
    first = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
    optimizer.add_param_group({**first, "params": [torch.nn.Parameter(torch.zeros(1))]})
    return optimizer


def plateau(self: Any) -> Any:
    optimizer = torch.optim.SGD(self.parameters(), lr=0.5)
    scheduler = schedulers.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, min_lr=0.05)
    return {"optimizer": optimizer, "lr_scheduler": scheduler, "monitor": "val_loss"}


def test_a_plateau_monitors_its_metric(train: Any) -> None:
    def step(self: Any, batch: Any) -> Any:
        self.log("val_loss", 1.0)  # never improves
        return self.net(batch[0]).square().mean()

    run = train(made("none", configure_optimizers=plateau, validation_step=step)())
    table = table_of(run)
    assert table["monitor"] == "val_loss"
    assert table["optimizer"]["schedule"] == {
        "decay": "plateau", "factor": 0.5, "patience": 1, "final": 0.1, "threshold": 1e-4, "threshold_mode": "rel"
    }  # fmt: skip
    events = (run.run_dir / "events.jsonl").read_text()
    assert events.count("learning rate reduced") == 2


@pytest.mark.parametrize(
    ("own", "length", "message"),
    [
        (
            lambda o: OwnOptimizer(o, schedulers.StepLR(o, 1)),
            RunLength(None, None),
            "StepLR needs the length of the run",
        ),
        (
            lambda o: OwnOptimizer(o, schedulers.OneCycleLR(o, 1, 10), "step"),
            RunLength(10, 1),
            "also changes 'momentum'",
        ),
        (lambda o: OwnOptimizer(o, schedulers.ReduceLROnPlateau(o, cooldown=2)), RunLength(10, 1), "with a cooldown"),
        (
            lambda o: OwnOptimizer(_two_groups(o), schedulers.ReduceLROnPlateau(o, min_lr=[0.1, 0.2])),
            RunLength(10, 1),
            "different min_lr for groups",
        ),
        (
            lambda o: OwnOptimizer(o, schedulers.ReduceLROnPlateau(o, mode="max"), monitor="val_loss"),
            RunLength(10, 1),
            "has mode 'max'",
        ),
    ],
)
def test_what_a_run_cannot_schedule_is_one_line(own: Any, length: RunLength, message: str) -> None:
    own = own(sgd())
    with pytest.raises(ConfigurationError, match=message) as caught:
        suggestion(own, length)
    assert "\n" not in str(caught.value)


def test_groups_with_different_options_are_refused() -> None:
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": lr} for lr in (0.1, 0.2)]
    with pytest.raises(ConfigurationError, match="groups of parameters with different options"):
        suggestion(OwnOptimizer(torch.optim.SGD(groups)), RunLength(10, 1))


def test_groups_whose_rates_a_scheduler_sets_apart_are_refused() -> None:
    optimizer = torch.optim.SGD([{"params": [torch.nn.Parameter(torch.zeros(1))]} for _ in range(2)], lr=0.1)
    scheduler = schedulers.LambdaLR(optimizer, [lambda epoch: 1.0, lambda epoch: 0.5**epoch])
    with pytest.raises(ConfigurationError, match="LambdaLR sets different rates for groups of parameters"):
        suggestion(OwnOptimizer(optimizer, scheduler), RunLength(10, 5))


def test_several_optimizers_end_the_run_before_it_starts(train: Any) -> None:
    def configured(self: Any) -> Any:
        return [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.net[0], self.net[2])]

    with pytest.raises(ConfigurationError, match="returns 2 optimizers"):
        train(made("none", configure_optimizers=configured)())


def test_a_resumed_run_equals_one_that_never_stopped(train: Any) -> None:
    def configured(self: Any) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.2, momentum=0.9)
        return [optimizer], [schedulers.ExponentialLR(optimizer, 0.5)]

    class StopOnce(chimera.Callback):
        def on_progress(self, progress: Any) -> None:
            if progress.rounds == 4:
                raise KeyboardInterrupt

    module = made("none", configure_optimizers=configured)
    whole = train(module(), "whole")
    with pytest.raises(KeyboardInterrupt):
        train(module(), "parts", callbacks=[StopOnce()])
    resumed = train(module(), "parts", resume=True)
    np.testing.assert_array_equal(weights(resumed), weights(whole))

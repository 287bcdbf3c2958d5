"""An optimizer object equals the same optimizer by name, to the bit, also in the run's experiment file."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch

import chimera
from chimera.core.errors import ConfigurationError
from chimera.core.optimizer_table import optimizer_table
from chimera.training.optimizers.optimizer import OptimizerSettings
from training.conftest import Fit

ADAMW = {"name": "adamw", "lr": 0.003, "betas": [0.8, 0.99]}


class Halved(torch.optim.SGD):
    """A custom optimizer: half the step."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, lr=lr / 2)


class Muon(torch.optim.SGD):
    """A custom optimizer of a flat vector, with the name of one of torch."""


def instance(**options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW([torch.nn.Parameter(torch.zeros(3))], **options)


@pytest.mark.parametrize(
    "make",
    [lambda **options: functools.partial(torch.optim.AdamW, **options), instance],
    ids=["partial", "instance"],
)
def test_an_optimizer_object_is_written_as_its_name_and_options(fit: Fit, make: Any) -> None:
    given = make(lr=0.003, betas=(0.8, 0.99))
    assert optimizer_table(given, {}) == {**ADAMW, "name": "AdamW"}
    named, made = fit("named", optimizer=ADAMW), fit("made", optimizer=given)
    assert np.array_equal(named.trained.parameters(), made.trained.parameters())
    again = chimera.Experiment.load(made.run_dir / "experiment.toml")
    assert again.tables["train"]["optimizer"] == {**ADAMW, "name": "AdamW"}


def test_an_instance_keeps_its_learning_rate_if_that_is_the_default_of_torch() -> None:
    made = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])  # by name, sgd has another default
    assert optimizer_table(made, {}) == {"name": "SGD", "lr": 1e-3}


@pytest.mark.parametrize("wrap", [lambda module: module, chimera.TorchModel], ids=["module", "model"])
def test_an_instance_for_a_part_of_the_parameters_is_refused(wrap: Any, tmp_path: Any) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 2))
    data = (np.zeros((8, 2), np.float32), np.arange(8) % 2)
    options: dict[str, Any] = {"engine": "simulated", "workers": 1, "rounds": 1, "progress": False}
    head = torch.optim.SGD(net[1].parameters(), lr=0.1)
    with pytest.raises(
        ConfigurationError, match=r"the optimizer SGD does not have the parameter '0.weight' \(2 are missing"
    ):
        chimera.train(wrap(net), data, optimizer=head, out=tmp_path / "head", **options)
    net[0].requires_grad_(False)
    assert chimera.train(wrap(net), data, optimizer=head, out=tmp_path / "frozen", **options).summary()["rounds"] == 1


@pytest.mark.parametrize(
    ("make", "held"),
    [
        (torch.optim.Adam, "exp_avg"),
        (functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9), "momentum_buffer"),
        (torch.optim.Adagrad, "sum"),  # it has a state before its first step, too
    ],
)
def test_the_state_of_an_instance_is_not_used_with_a_warning(fit: Fit, make: Any, held: str) -> None:
    fresh, used = (make([torch.nn.Parameter(torch.zeros(3))]) for _ in range(2))
    used.param_groups[0]["params"][0].grad = torch.ones(3)
    used.step()
    expected = fit("fresh", optimizer=fresh, rounds=3)  # without a warning: pytest makes it an error
    with pytest.warns(UserWarning, match=f"has taken steps, but .* its state, such as '{held}', is not used"):
        run = fit("used", optimizer=used, rounds=3)
    assert np.array_equal(run.trained.parameters(), expected.trained.parameters())


def test_an_optimizer_may_keep_other_things_in_its_state(fit: Fit) -> None:
    own = Halved([torch.nn.Parameter(torch.zeros(3))])
    own.state["seen"] = 0  # type: ignore[index, assignment]
    assert fit(optimizer=own, rounds=1).summary()["rounds"] == 1


@pytest.mark.long
@pytest.mark.parametrize("engine", ["simulated", "local"])
def test_a_custom_optimizer_class_works_on_workers_and_servers(fit: Fit, engine: str) -> None:
    own, known = (
        fit(
            f"{place}",
            engine=engine,
            strategy={"name": "fed-avg", "local_steps": 3, "server_optimizer": server},
            optimizer=local,
        )
        for place, (local, server) in enumerate(
            [
                (Halved, functools.partial(Halved, lr=1.0)),
                ({"name": "sgd", "lr": 0.05}, {"name": "sgd", "lr": 0.5}),
            ]
        )
    )
    np.testing.assert_allclose(own.trained.parameters(), known.trained.parameters(), atol=2e-6)


@pytest.mark.parametrize(
    "name", ["sgd", "momentum", "adam", "AdamW", "adagrad", "adadelta", "rmsprop", "yogi", "radam"]
)
def test_every_optimizer_name_works_on_workers_and_servers(fit: Fit, name: str) -> None:
    run = fit(strategy={"name": "fed-avg", "local_steps": 2, "server_optimizer": name}, optimizer=name, rounds=3)
    assert np.isfinite(run.metrics["loss"])


def test_an_optimizer_of_matrices_of_transformers_is_refused() -> None:
    pytest.importorskip("transformers")
    with pytest.raises(ConfigurationError, match="steps matrices"):
        OptimizerSettings.of("transformers.optimization:Adafactor", {}).check()


def test_a_class_of_the_user_may_have_the_name_of_one_of_torch() -> None:
    OptimizerSettings.of(f"{__name__}:Muon", {}).check()


def test_momentum_equals_sgd_with_momentum(fit: Fit) -> None:
    short, long = fit("a", optimizer="momentum"), fit("b", optimizer={"name": "sgd", "momentum": 0.9, "lr": 0.1})
    assert np.array_equal(short.trained.parameters(), long.trained.parameters())


def two_groups() -> torch.optim.Optimizer:
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": lr} for lr in (0.1, 0.2)]
    return torch.optim.SGD(groups)


def local_class() -> type:
    class Hidden(torch.optim.SGD):
        pass

    return Hidden


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, "3 is no optimizer"),
        (two_groups, "groups of parameters with different options"),
        (local_class, "define it at the top of a module"),
        ("nowhere:Optimizer", "cannot import 'nowhere'"),
        ("adafactor", "'adafactor' steps matrices, by their rows and columns"),  # its results were not those of torch
        ("torch.optim:Adafactor", "'torch.optim:Adafactor' steps matrices"),
        ("adammm", r"unknown optimizer 'adammm'; did you mean 'adam'\? known: .*yogi"),
    ],
    ids=["number", "groups", "hidden", "nowhere", "matrices", "path", "misspelt"],
)
def test_invalid_options_raise_a_one_line_error(fit: Fit, given: Any, message: str) -> None:
    optimizer = given() if callable(given) else given  # a torch optimizer takes seconds to import
    with pytest.raises(ConfigurationError, match=message) as caught:
        fit(optimizer=optimizer)
    assert "\n" not in str(caught.value)

"""A worker that prepares its next batch ahead computes the same gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from chimera.core import call
from chimera.core.message import Encoded
from chimera.data.dataset import Dataset
from chimera.data.order import GlobalOrder
from chimera.models.torch_model import TorchModel
from chimera.training.optimizers.optimizer import OptimizerSettings
from chimera.training.worker.learner import Learner

ROWS, BATCH = 40, 8
RNG = np.random.default_rng(0)
DATA = Dataset.of((RNG.random((ROWS, 5), np.float32), RNG.integers(0, 3, ROWS)))


class Preparing(call.ActorContext):
    """Runs the work deferred by a call at once, and counts it."""

    prepared = 0

    def afterwards(self, prepare: Callable[[], None]) -> None:
        prepare()
        self.prepared += 1


@pytest.fixture
def preparing() -> Iterator[Preparing]:
    mine = Preparing()
    before = call.enter(mine)
    yield mine
    call.enter(before)


def order(seed: int = 0) -> GlobalOrder:
    return GlobalOrder(ROWS, world_size=2, rank=1, batch_size=BATCH, seed=seed)


def gradients(between: Callable[[Learner], None]) -> list[np.ndarray]:
    """Return the gradients of a few steps of a worker; ``between`` runs after the second."""
    torch.manual_seed(0)
    model = TorchModel(torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 3)))
    worker = Learner(1, model, DATA, order(), optimizer=OptimizerSettings("sgd", {"lr": 0.1}))
    weights = Encoded("identity", model.layout.size, (model.parameters().copy(),))
    found = []
    for step in range(5):
        if step == 2:
            between(worker)
        (message,) = worker.gradient(weights)
        assert isinstance(message, Encoded)
        found.append(message.arrays[0].copy())
    return found


@pytest.mark.parametrize(
    "between",
    [
        lambda worker: None,
        lambda worker: worker.go_to(7),
        lambda worker: worker.follow(order(seed=1), since=0),
        lambda worker: worker.attack("label flip", 1.0),
        lambda worker: worker.train(1),
    ],
    ids=["nothing", "another step", "other data", "other labels", "a step of its own"],
)
def test_prepared_batches_give_the_same_gradients(
    between: Callable[[Learner], None], request: pytest.FixtureRequest
) -> None:
    expected = gradients(between)
    preparing = request.getfixturevalue("preparing")
    for found, wanted in zip(gradients(between), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert preparing.prepared == 5

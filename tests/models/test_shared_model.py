"""One model object that several workers of a process use in turn."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from chimera.models.shared_model import SharedInstance, SharedModel
from chimera.models.torch_model import TorchModel

nn = pytest.importorskip("torch").nn
BATCH = np.arange(12, dtype=np.float32).reshape(4, 3), np.array([0, 1, 1, 0])


def model() -> TorchModel:
    return TorchModel(lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)), seed=1)


def test_users_that_set_all_parameters_compute_the_same_as_separate_models() -> None:
    users = [SharedModel(SharedInstance(model()))]
    users.append(pickle.loads(pickle.dumps(users[0])))
    own = [model(), model()]
    rng = np.random.default_rng(0)
    for turn in (0, 1, 1, 0, 1):
        weights = rng.normal(size=own[turn].layout.size).astype(np.float32)
        found = []
        for each in (users[turn], own[turn]):
            each.load(weights)
            gradient, loss = each.gradient((BATCH[0] * (turn + 1), BATCH[1]))
            found.append((gradient.tobytes(), loss))
        assert found[0] == found[1]
        for user, mine in zip(
            users, own, strict=True
        ):  # changes of buffers stay with the user that computed the batches
            assert np.array_equal(user.buffers(), mine.buffers())


def test_buffers_can_be_set_between_calls() -> None:
    first = SharedModel(SharedInstance(model()))
    second = pickle.loads(pickle.dumps(first))
    first.gradient(BATCH)
    theirs = first.buffers()
    second.load_buffers(theirs * 2)
    assert np.array_equal(first.buffers(), theirs)
    second.gradient(BATCH)
    first.load_buffers(theirs * 3)
    first.parameters()
    assert np.array_equal(first.buffers(), theirs * 3)

"""Frozen parameters that copies of a model share: no copy of their memory, the same results, and no silent write."""

from __future__ import annotations

import pickle
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import chimera
from chimera.core.errors import ConfigurationError, DataError
from chimera.data.dataset import Dataset
from chimera.models.torch_model import TorchModel
from chimera.training.worker.driver_schema import DriverSchema

BATCH = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32), np.arange(6) % 2


class Adapted(nn.Module):
    """A frozen layer in bfloat16, whose bias is tied to another frozen parameter, and a trained layer."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.head = nn.Linear(4, 64).bfloat16(), nn.Linear(64, 2)
        self.base.requires_grad_(False)
        self.tied = self.base.bias
        self.scale = nn.Parameter(torch.tensor(2.0), requires_grad=False)

    def forward(self, inputs: Any) -> Any:
        return self.head(self.base(inputs.bfloat16()).float() * self.scale)


def buffers_of(model: TorchModel) -> tuple[bytes, list[bytes]]:
    """Return a pickle, and its buffers in memory that Python cannot write to."""
    found: list[pickle.PickleBuffer] = []
    stream = pickle.dumps(model, 5, buffer_callback=found.append)
    return stream, [bytes(buffer) for buffer in found]


@pytest.fixture
def model() -> TorchModel:
    return TorchModel(Adapted, share_frozen=True, seed=3)


def test_copies_read_the_frozen_parameters_where_they_are(model: TorchModel) -> None:
    stream, held = buffers_of(model)
    places = {np.frombuffer(one, np.uint8).__array_interface__["data"][0] for one in held}
    copies: list[Any] = [pickle.loads(stream, buffers=held).module for _ in range(2)]
    for copy in copies:
        assert copy.base.weight.data_ptr() in places
        assert copy.base.bias is copy.tied
        assert copy.base.weight.dtype is torch.bfloat16
        assert not copy.scale.requires_grad
    assert copies[0].head.weight.data_ptr() != copies[1].head.weight.data_ptr()


def test_a_copy_computes_what_the_model_computes(model: TorchModel) -> None:
    stream, held = buffers_of(model)
    copy = pickle.loads(stream, buffers=held)
    (gradient, loss), (other, other_loss) = model.gradient(BATCH), copy.gradient(BATCH)
    assert loss == other_loss
    assert np.array_equal(gradient, other)
    assert copy.frozen_digest == model.frozen_digest


def test_without_sharing_frozen_parameters_are_private() -> None:
    stream, held = buffers_of(TorchModel(Adapted, seed=3))
    copies: list[Any] = [pickle.loads(stream, buffers=held).module for _ in range(2)]
    assert copies[0].base.weight.data_ptr() != copies[1].base.weight.data_ptr()


class Counting(Adapted):
    """It writes to a frozen parameter in each forward pass."""

    def forward(self, inputs: Any) -> Any:
        self.scale.add_(1)
        return super().forward(inputs)


def test_a_write_to_a_shared_parameter_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="wrote to its frozen parameter 'scale'"):
        TorchModel(Counting, share_frozen=True, seed=3).gradient(BATCH)
    TorchModel(Counting, seed=3).gradient(BATCH)


@pytest.mark.parametrize("engine", ["simulated", pytest.param("local", marks=pytest.mark.long)])
def test_a_write_on_a_worker_ends_the_run_with_one_error(engine: str, tmp_path: Path) -> None:
    model = TorchModel(Counting, share_frozen=True, seed=3)
    with pytest.raises(ConfigurationError, match="wrote to its frozen parameter 'scale'"):
        chimera.train(model, BATCH, engine=engine, workers=2, batch_size=2, rounds=2, out=tmp_path / "run")


@pytest.mark.parametrize("own", [0, 1])
def test_a_node_with_another_frozen_part_is_refused(own: int) -> None:
    driver, node = TorchModel(Adapted, seed=0), TorchModel(Adapted, seed=own)
    schema = DriverSchema.of(driver, Dataset(*BATCH, ("0", "1")))
    with pytest.raises(DataError, match="the frozen parameters of the model of tree1,") if own else nullcontext():
        schema.check(node, "tree1")


def test_the_digest_depends_on_each_frozen_value_and_on_no_trained_one(model: TorchModel) -> None:
    module: Any = TorchModel(Adapted, share_frozen=True, seed=3).module
    with torch.no_grad():
        module.head.weight.zero_()
    assert TorchModel(module).frozen_digest == model.frozen_digest
    with torch.no_grad():
        module.base.weight[3, 3] += 1
    assert TorchModel(module).frozen_digest != model.frozen_digest
    assert TorchModel(nn.Linear(4, 2)).frozen_digest is None


def test_the_digest_reads_the_factors_of_adapters_only() -> None:
    module: Any = nn.Linear(4, 2)
    module.scaling = {"type": "linear"}
    assert TorchModel(module).frozen_digest is None
    module.bias.requires_grad_(False)
    plain: Any = nn.Linear(4, 2)
    plain.load_state_dict(module.state_dict())
    plain.bias.requires_grad_(False)
    assert TorchModel(module).frozen_digest == TorchModel(plain).frozen_digest

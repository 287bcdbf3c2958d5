"""A part of a model on a device. With the CPU as the device, the same copies are made as for a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from chimera.data.order import GlobalOrder
from chimera.engines.simulated import Simulated
from chimera.models.torch_model import TorchModel
from chimera.strategies.model_partition import ModelPartition
from chimera.training.experiment.resolve import split_of
from chimera.training.model_parallel.partitioning import cut
from chimera.training.model_parallel.stage import Stage
from chimera.training.optimizers.optimizer import OptimizerSettings
from model_parallel_kit import random_and_normalised

STEPS, REPLICAS = 3, 2


def weights(parts: ModelPartition, device: str | None) -> list[np.ndarray]:
    """Return the weights of each worker after some steps of two replicas with different data."""
    data = split_of("digits", 1).train
    pieces = cut(TorchModel(random_and_normalised, seed=1), parts, data.inputs[:4])
    with Simulated() as engine:
        workers = [
            engine.spawn(
                Stage, rank, pieces[rank % parts.readers], data,
                GlobalOrder(len(data), world_size=REPLICAS, rank=rank // parts.readers, batch_size=16, seed=1),
                parts=parts, optimizer=OptimizerSettings.of("adam", {"lr": 0.01}), device=device,
            )
            for rank in range(REPLICAS * parts.readers)
        ]  # fmt: skip
        teams = [engine.group(workers[first : first + parts.slices]) for first in range(0, len(workers), parts.slices)]
        copies = [engine.group(workers[part :: parts.readers]) for part in range(parts.readers)]
        for _ in range(STEPS):
            for phase in ("forward", "backward"):
                for rank, worker in enumerate(workers):
                    getattr(worker, phase)(0, None, teams[rank // parts.slices] if parts.slices > 1 else None)
            engine.get([worker.update(copies[rank % parts.readers]) for rank, worker in enumerate(workers)])
        return [each.arrays[0] for each in engine.get([worker.weights() for worker in workers])]


@pytest.mark.parametrize("parts", [ModelPartition(), ModelPartition(slices=2)], ids=["whole", "slices"])
def test_replicas_on_a_device_have_the_same_bits(parts: ModelPartition) -> None:
    here, there = weights(parts, None), weights(parts, "cpu")
    for own, other in zip(here, there, strict=True):
        np.testing.assert_array_equal(other, own)
    for part in range(parts.readers):
        np.testing.assert_array_equal(here[part], here[parts.readers + part])

"""Groups of Ray actors on GPUs: one GPU is enough for these tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chimera.core.engine import Resources
from chimera.engines.ray import Ray
from chimera.engines.ray.groups.nccl_link import NcclLink
from fake_device import NO_GPU

pytest.importorskip("ray")
pytestmark = [NO_GPU, pytest.mark.long]
LIMIT_S = 60.0


class Alone:
    """An actor that connects a group of itself over nccl, which accepts one rank per GPU."""

    def sums(self, size: int, times: int) -> list[float]:
        import torch.distributed as dist

        link = NcclLink(dist.HashStore(), 0, 1)
        found = []
        for number in range(times):
            flat = np.full(size, number, np.float32)
            tensor = link.tensor(flat)
            work = link.group.allreduce([tensor])
            while not link.done(work, 0.05):
                continue
            link.bring(tensor, flat)
            found.append(float(flat.sum()))
        link.end()
        return found


class Member:
    def mean(self, group: Any, number: float) -> Any:
        return group.all_reduce(np.full(3, number, np.float32))


def test_one_ray_actor_reduces_over_nccl() -> None:
    with Ray() as engine:
        actor = engine.spawn(Alone, resources=Resources(gpus=1))
        assert engine.get(actor.sums(1000, 3), timeout_s=LIMIT_S) == [0.0, 1000.0, 2000.0]


def test_two_ray_actors_that_share_a_gpu_meet_without_nccl() -> None:
    with Ray() as engine:
        members = [engine.spawn(Member, resources=Resources(gpus=0.5)) for _ in range(2)]
        group = engine.group(members)
        means = engine.get([member.mean(group, rank) for rank, member in enumerate(members)], LIMIT_S)
    assert [mean.tolist() for mean in means] == [[0.5] * 3] * 2

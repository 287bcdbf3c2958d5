"""Building models under a seed, from several threads of one process (two workers' web servers, say)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier, BrokenBarrierError

import numpy as np
import torch
from torch import nn

from chimera.models.instantiation import instantiate, parameter_limit

THREADS = 2


def test_models_that_threads_build_at_the_same_time_are_equal() -> None:
    barrier = Barrier(THREADS, timeout=0.5)

    def network() -> nn.Module:
        meet(barrier)  # both factories run at the same time, unless they are serialized
        first = nn.Linear(4, 3)
        meet(barrier)
        return nn.Sequential(first, nn.Linear(3, 2))

    with ThreadPoolExecutor(THREADS) as pool:
        made = [pool.submit(instantiate, network, seed=7) for _ in range(THREADS)]
        one, other = (torch.cat([p.flatten() for p in each.result().parameters()]) for each in made)
    assert torch.equal(one, other)


def test_threads_count_parameters_against_their_own_limit_only() -> None:
    barrier = Barrier(THREADS, timeout=0.5)

    def limited() -> nn.Module:
        with parameter_limit(15, "15"):
            meet(barrier)
            made = nn.Linear(4, 3)
            meet(barrier)
            return made

    with ThreadPoolExecutor(THREADS) as pool:
        for each in [pool.submit(limited) for _ in range(THREADS)]:
            assert each.result().weight.shape == (3, 4)


def test_building_a_model_does_not_change_the_global_generators() -> None:
    torch.manual_seed(3)
    np.random.seed(3)
    drawn = torch.rand(1), np.random.rand()
    torch.manual_seed(3)
    np.random.seed(3)
    instantiate(nn.Linear, {"in_features": 2, "out_features": 2}, seed=5)
    assert (torch.rand(1), np.random.rand()) == drawn


def meet(barrier: Barrier) -> None:
    """Wait for the other thread until the barrier's timeout."""
    with suppress(BrokenBarrierError):
        barrier.wait()

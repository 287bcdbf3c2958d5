"""Where slices meet: sums over all workers inside a forward or backward pass, f and g of Shoeybi et al. 2019, section 3."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chimera.core.engine import Group

Told: TypeAlias = Callable[[NDArray[np.float32]], None]
_group: ContextVar[tuple[Group, Told]] = ContextVar("group")


@contextmanager
def together(group: Group, told: Told) -> Iterator[None]:
    """Let the layers that this thread computes meet those of the group's other members; ``told`` what each gives."""
    before = _group.set((group, told))
    try:
        with torch.autograd.set_multithreading_enabled(
            False
        ):  # a pass back meets them too, and so stays on this thread
            yield
    finally:
        _group.reset(before)


def summed(tensor: Tensor) -> Tensor:
    """Return the sum of all members' tensors; its gradient is everybody's. One all-reduce forward, none backward."""
    return _Summed.apply(tensor)  # type: ignore[no-any-return, no-untyped-call]


def shared(tensor: Tensor) -> Tensor:
    """Return a tensor that all members have, for each to use in its own way. None forward, one all-reduce backward."""
    return _Shared.apply(tensor)  # type: ignore[no-any-return, no-untyped-call]


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:  # noqa: ARG004 - nothing is needed on the way back
        return _sum(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # noqa: ARG004
        return gradient


class _Shared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:  # noqa: ARG004
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # noqa: ARG004
        return _sum(gradient)


def _sum(tensor: Tensor) -> Tensor:
    array = tensor.detach().cpu().numpy().copy()
    group, told = _group.get()
    told(array)
    # Where workers share a process others compute meanwhile, and draw random numbers of their own.
    with torch.random.fork_rng(devices=[tensor.device] if tensor.is_cuda else []):
        group.all_reduce(array, "sum")
    return torch.from_numpy(array).to(tensor.device)

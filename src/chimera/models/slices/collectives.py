"""All-reduces inside forward and backward passes: the operators f and g of Shoeybi et al. 2019, section 3."""

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

OnReduce: TypeAlias = Callable[[NDArray[np.float32]], None]
"""Called before each all-reduce with the local summand, to count its bytes."""

_group: ContextVar[tuple[Group, OnReduce]] = ContextVar("group")


@contextmanager
def slice_group(group: Group, on_reduce: OnReduce) -> Iterator[None]:
    """Make the sliced layers that this thread computes reduce over ``group``, and call ``on_reduce`` before each all-reduce."""
    before = _group.set((group, on_reduce))
    try:
        # The backward pass reduces too, so it must stay on this thread, where the context variable is set.
        with torch.autograd.set_multithreading_enabled(False):
            yield
    finally:
        _group.reset(before)


def reduce_from_group(tensor: Tensor) -> Tensor:
    """Return the sum of all members' tensors (g): one all-reduce in the forward pass; gradients pass unchanged."""
    return _ReduceFromGroup.apply(tensor)  # type: ignore[no-any-return, no-untyped-call]


def copy_to_group(tensor: Tensor) -> Tensor:
    """Return a replicated tensor for members to use independently (f): one all-reduce of gradients in the backward pass."""
    return _CopyToGroup.apply(tensor)  # type: ignore[no-any-return, no-untyped-call]


class _ReduceFromGroup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:  # noqa: ARG004 - backward needs no context
        return _all_reduce(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # noqa: ARG004
        return gradient


class _CopyToGroup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:  # noqa: ARG004
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # noqa: ARG004
        return _all_reduce(gradient)


def _all_reduce(tensor: Tensor) -> Tensor:
    array = tensor.detach().cpu().numpy().copy()
    group, on_reduce = _group.get()
    on_reduce(array)
    # Workers that share this process compute during the all-reduce and draw random numbers of their own.
    with torch.random.fork_rng(devices=[tensor.device] if tensor.is_cuda else []):
        group.all_reduce(array, "sum")
    return torch.from_numpy(array).to(tensor.device)

"""Policies that merge the buffers of workers (such as running means of batch normalisation)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chimera.core.errors import ConfigurationError
from chimera.core.parameters import Flat
from chimera.core.registry import Registry

BUFFER_POLICIES: Registry[Flat | None] = Registry("buffer policy", "chimera.models")


def merge_buffers(buffers: Sequence[Flat], policy: str = "average") -> Flat | None:
    """Return the buffers that all workers load after a round, or None if each worker keeps its own.

    Parameters
    ----------
    buffers : results of `Model.buffers` on all workers, in rank order; not changed.
    policy : ``average`` (default), ``first``, ``none``, or ``package.module:function``.

    Raises
    ------
    UnknownNameError : no policy has this name.
    ConfigurationError : no buffers, or buffers of different lengths.
    """
    merge = BUFFER_POLICIES.find(policy).factory
    sizes = sorted({len(flat) for flat in buffers})
    if len(sizes) != 1:
        raise ConfigurationError(f"buffers to merge must be of one length, these are of {sizes or 'no'} lengths")
    return merge(buffers)


@BUFFER_POLICIES.register("average")
def average(buffers: Sequence[Flat]) -> Flat:
    """Mean over all workers, summed in rank order in float64, so that equal copies average to the same values."""
    total = buffers[0].astype(np.float64)
    for flat in buffers[1:]:
        total += flat
    return (total / len(buffers)).astype(np.float32)


@BUFFER_POLICIES.register("first")
def first(buffers: Sequence[Flat]) -> Flat:
    """Buffers of the worker with the lowest rank."""
    return buffers[0].copy()


@BUFFER_POLICIES.register("none")
def none(buffers: Sequence[Flat]) -> None:  # noqa: ARG001 - policies share one signature
    """No exchange: each worker keeps its own buffers."""
    return

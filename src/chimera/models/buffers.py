"""Merging the buffers of many workers (running means of batch normalisation, say), by a policy with a name."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chimera.core.errors import ConfigurationError
from chimera.core.parameters import Flat
from chimera.core.registry import Registry

BUFFER_POLICIES: Registry[Flat | None] = Registry("buffer policy", "chimera.models")


def merge_buffers(buffers: Sequence[Flat], policy: str = "average") -> Flat | None:
    """Return what all workers are to load after a round, or nothing if each keeps its own.

    Parameters
    ----------
    buffers : what `Model.buffers` returned on each worker, in rank order; not changed.
    policy : ``average``, ``first`` or ``none``, or ``package.module:function`` of one's own.

    Raises
    ------
    UnknownNameError : no such policy.
    ConfigurationError : no buffers, or of different lengths.
    """
    merge = BUFFER_POLICIES.find(policy).factory
    sizes = sorted({len(flat) for flat in buffers})
    if len(sizes) != 1:
        raise ConfigurationError(f"buffers to merge must be of one length, these are of {sizes or 'no'} lengths")
    return merge(buffers)


@BUFFER_POLICIES.register("average")
def average(buffers: Sequence[Flat]) -> Flat:
    """Mean of all workers in rank order, summed in float64, so that N equal copies average to themselves."""
    total = buffers[0].astype(np.float64)
    for flat in buffers[1:]:
        total += flat
    return (total / len(buffers)).astype(np.float32)


@BUFFER_POLICIES.register("first")
def first(buffers: Sequence[Flat]) -> Flat:
    """Those of the worker with the lowest rank."""
    return buffers[0].copy()


@BUFFER_POLICIES.register("none")
def none(buffers: Sequence[Flat]) -> None:  # noqa: ARG001 - policies share one signature
    """Nothing travels: each worker keeps its own buffers."""
    return

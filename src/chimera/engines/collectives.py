"""What all collectives agree on, however an engine carries them out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError

Op: TypeAlias = Literal["mean", "sum"]


class Costs(Protocol):
    """The surroundings of an actor, as its collectives see them.

    Attributes
    ----------
    waited_s, collective_bytes : what the collectives and the waits of the running call have cost so far.
    """

    waited_s: float
    collective_bytes: int

    def alive(self) -> None:
        """Give a sign of life."""

    def empty(self, size: int) -> NDArray[np.float32]:
        """Return memory that the collectives reach without a copy."""


def check_op(op: str) -> None:
    """Refuse an operation that an all-reduce does not have."""
    if op not in ("mean", "sum"):
        raise ConfigurationError(f"all_reduce has no operation {op!r}; it has mean and sum")


def scale_of(op: Op, size: int) -> float:
    """Return what an all-reduce multiplies the sum over ``size`` members by."""
    check_op(op)
    return 1 / size if op == "mean" else 1.0


def check_root(root: int, size: int) -> None:
    """Refuse a broadcast from nobody."""
    if not 0 <= root < size:
        raise ConfigurationError(f"broadcast from rank {root} of a group of {size}")


def check_sizes(sizes: Sequence[int]) -> None:
    """Refuse vectors of which some are longer than others; what members brought, in rank order."""
    if len(set(sizes)) > 1:
        raise ConfigurationError(f"the members of a group brought vectors of unequal sizes: {[*sizes]}")


def flat_of(array: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return an array as a vector, in place."""
    if array.dtype != np.float32 or not array.flags.c_contiguous or not array.flags.writeable:
        raise ConfigurationError("a collective needs a contiguous float32 array that can be written to")
    return array.reshape(-1)

"""Argument checks and types that the collectives of all engines share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError

Op: TypeAlias = Literal["mean", "sum"]


class Costs(Protocol):
    """The part of an actor's context that collectives use.

    Attributes
    ----------
    waited_s, collective_bytes : seconds of waiting and bytes of collectives in the running call so far.
    sent_bytes, received_bytes : array bytes of messages of groups in the running call so far.
    """

    waited_s: float
    collective_bytes: int
    sent_bytes: int
    received_bytes: int

    def alive(self) -> None:
        """Send a heartbeat."""

    def empty(self, size: int) -> NDArray[np.float32]:
        """Return memory that collectives use without a copy, shape (size,)."""


def check_op(op: str) -> None:
    """Raise ConfigurationError if an all-reduce does not have this operation."""
    if op not in ("mean", "sum"):
        raise ConfigurationError(f"all_reduce has no operation {op!r}; it has mean and sum")


def scale_of(op: Op, size: int) -> float:
    """Return the factor by which an all-reduce multiplies the sum over ``size`` members."""
    check_op(op)
    return 1 / size if op == "mean" else 1.0


def check_root(root: int, size: int) -> None:
    """Raise ConfigurationError if the root of a broadcast is not a rank of the group."""
    if not 0 <= root < size:
        raise ConfigurationError(f"broadcast from rank {root} of a group of {size}")


def check_sizes(sizes: Sequence[int]) -> None:
    """Raise ConfigurationError unless the members' vectors have equal sizes; ``sizes`` are in rank order."""
    if len(set(sizes)) > 1:
        raise ConfigurationError(f"the members of a group brought vectors of unequal sizes: {[*sizes]}")


def flat_of(array: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return a view of an array as a vector; raise ConfigurationError unless it is contiguous, float32 and writable."""
    if array.dtype != np.float32 or not array.flags.c_contiguous or not array.flags.writeable:
        raise ConfigurationError("a collective needs a contiguous float32 array that can be written to")
    return array.reshape(-1)


def check_ranks(ranks: Sequence[int], size: int) -> None:
    """Raise ConfigurationError unless these are different ranks of a group of ``size``."""
    if len(set(ranks)) < len(ranks) or not all(0 <= rank < size for rank in ranks):
        raise ConfigurationError(f"messages of members {[*ranks]} of a group of {size}: use each rank from 0 once")


def check_count(members: Sequence[int], count: int | None) -> int:
    """Return the number of values that `receive` awaits: ``count``, or one of each member.

    Raises
    ------
    ConfigurationError : there are fewer members, or the number is not above 0.
    """
    wanted = len(members) if count is None else count
    if not 0 < wanted <= len(members):
        raise ConfigurationError(f"receive waits for {wanted} values of {len(members)} members")
    return wanted

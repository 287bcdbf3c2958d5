"""What a codec does where workers meet in a group: means of less than the whole vector."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from numpy.typing import NDArray

from chimera.codecs.codec import State
from chimera.core.parameters import Flat, Layout

Mean: TypeAlias = Callable[[Flat], object]
"""Replaces a contiguous vector by its mean over all members that take part: one collective, the same bits for all."""


class Reduction(ABC):
    """The all-reduce form of a codec, see `Codec.reduction`. Each member of a group has one.

    What it remembers is shared, and then the same on all members and part of the model's replica, or its own. A collective may
    fail in the middle of a step, and a mean that is not finite is thrown away: nothing that it remembers changes before
    `commit`, and who does not come to that calls `all_reduce` again.
    """

    @abstractmethod
    def all_reduce(self, vector: Flat, layout: Layout, mean: Mean, left: Flat | None = None) -> Flat:
        """Return what stands for the mean of all members' vectors, shape (n,); the same bits on all of them.

        Parameters
        ----------
        vector : this member's; it is overwritten, and may be the result.
        layout : of the tensors in it.
        mean : the collective. Which calls of it are made, and with how many elements, must follow from what all share.
        left : if given, what of this member's vector did not enter the result is written there: the sum of these over the
            members is the sum of their vectors less that many times the result.

        If a vector is not finite, then the result is not either, on any member.
        """

    def commit(self, took_part: bool = True) -> None:  # noqa: B027 - most remember nothing
        """Remember what the last `all_reduce` brought: its step is taken. ``took_part`` if this member's vector is in it."""

    def shared(self) -> State:
        """Return what is the same on all members."""
        return {}

    def restore_shared(self, state: Mapping[str, NDArray[Any]]) -> None:  # noqa: B027
        """Take what another member's `shared` returned; nothing stands for the beginning."""

    def state(self) -> State:
        """Return what is this member's own, for a checkpoint."""
        return {}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:  # noqa: B027
        """Take back what `state` returned."""


class Whole(Reduction):
    """The mean of whole vectors."""

    def all_reduce(self, vector: Flat, layout: Layout, mean: Mean, left: Flat | None = None) -> Flat:  # noqa: ARG002
        """Reduce all of it in one collective, which leaves nothing out."""
        mean(vector)
        if left is not None:
            left.fill(0)
        return vector

"""All-reduce forms of codecs: approximate means by collectives of fewer elements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeAlias

from numpy.typing import NDArray

from chimera.codecs.codec import State
from chimera.core.parameters import Flat, Layout

Mean: TypeAlias = Callable[[Flat], object]
"""Replaces a contiguous vector by its mean over all participating members: one collective, the same bits for all."""


class Reduction(ABC):
    """The all-reduce form of a codec, see `Codec.reduction`. Each member of a group has such an object.

    Its state is either shared (the same on all members and part of the model's replica) or the member's own. A collective may
    fail within a step, and a mean that is not finite is dropped. The state therefore changes only in `commit`, and a member
    that does not reach `commit` calls `all_reduce` again.

    Attributes
    ----------
    on_device : whether `all_reduce` also accepts a vector on a device, a tensor of torch, if ``mean`` does.
    """

    on_device: ClassVar[bool] = False

    @abstractmethod
    def all_reduce(self, vector: Flat, layout: Layout, mean: Mean, left: Flat | None = None) -> Flat:
        """Return the approximate mean of all members' vectors, shape (n,); the same bits on all members.

        Parameters
        ----------
        vector : this member's vector. It is overwritten, and may be the result.
        layout : the tensors in it.
        mean : the collective. Number and sizes of its calls must follow from shared state only.
        left : if given, receives the part of this member's vector that is not in the result. The sum of these over the members
            is the sum of their vectors minus the number of members times the result.

        If a vector is not finite, the result is not finite either, on any member.
        """

    def commit(self, participated: bool = True) -> None:  # noqa: B027 - most remember nothing
        """Keep the state of the last `all_reduce`; ``participated`` is whether this member's vector is in the mean."""

    def shared(self) -> State:
        """Return the state that is the same on all members."""
        return {}

    def restore_shared(self, state: Mapping[str, NDArray[Any]]) -> None:  # noqa: B027
        """Restore what another member's `shared` returned; an empty state means the initial one."""

    def state(self) -> State:
        """Return this member's own state, for a checkpoint."""
        return {}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:  # noqa: B027
        """Restore a state that `state` returned."""


class Whole(Reduction):
    """The mean of whole vectors."""

    on_device = True

    def all_reduce(self, vector: Flat, layout: Layout, mean: Mean, left: Flat | None = None) -> Flat:  # noqa: ARG002
        """Reduce the whole vector in one collective, without error."""
        mean(vector)
        if left is not None:
            left[:] = 0
        return vector

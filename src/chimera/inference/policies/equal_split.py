"""Equal numbers of workers, by weight."""

from __future__ import annotations

from collections.abc import Sequence

from chimera.inference.policies.policy import POLICIES, Contender, Policy


@POLICIES.register("equal-split")
class EqualSplit(Policy):
    """The job with the fewest workers per weight is next: each has as many, and the slowest model has the lowest rate.

    Among equals the worker stays with a model that it has loaded.
    """

    def choose(self, contenders: Sequence[Contender], workers: int) -> str:  # noqa: ARG002 - others count them
        """Return the one with the fewest workers per weight."""
        return min(contenders, key=lambda one: (one.workers / one.weight, not one.loaded, one.order)).job

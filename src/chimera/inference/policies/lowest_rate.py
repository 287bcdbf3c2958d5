"""Help for whoever is slowest."""

from __future__ import annotations

from collections.abc import Sequence

from chimera.inference.policies.policy import POLICIES, Contender, Policy


@POLICIES.register("lowest-rate")
class LowestRate(Policy):
    """The job with the lowest measured query rate per weight is next.

    What is dispatched shows in the rate only when it is finished, and for a whole window after: the rule overshoots, first
    for one job and then for the other.
    """

    def choose(self, contenders: Sequence[Contender], workers: int) -> str:  # noqa: ARG002 - others count them
        """Return the one with the lowest rate per weight, of equals the one with the fewest workers."""
        return min(contenders, key=lambda one: (one.rate / one.weight, one.workers, one.order)).job

"""The job with the lowest measured query rate first."""

from __future__ import annotations

from collections.abc import Sequence

from chimera.inference.policies.policy import POLICIES, Contender, Policy


@POLICIES.register("lowest-rate")
class LowestRate(Policy):
    """The job with the lowest measured query rate per weight is next.

    A dispatched batch changes the rate only when it is finished, and then for a whole window. So the rule overshoots, for one
    job after the other.
    """

    def choose(self, contenders: Sequence[Contender], workers: int) -> str:  # noqa: ARG002 - others count them
        """Return the job with the lowest rate per weight; ties go to the job with the fewest workers."""
        return min(contenders, key=lambda one: (one.rate / one.weight, one.workers, one.order)).job

"""Equal numbers of workers, by weight."""

from __future__ import annotations

from collections.abc import Sequence

from chimera.inference.policies.policy import POLICIES, Contender, Policy


@POLICIES.register("equal-split")
class EqualSplit(Policy):
    """The job with the fewest workers per weight is next. All jobs have equally many, so the slowest model has the lowest rate.

    Ties go to a job whose model the worker has loaded.
    """

    def choose(self, contenders: Sequence[Contender], workers: int) -> str:  # noqa: ARG002 - others count them
        """Return the job with the fewest workers per weight."""
        return min(contenders, key=lambda one: (one.workers / one.weight, not one.loaded, one.order)).job

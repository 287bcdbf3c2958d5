"""First come, first served: one job after the other."""

from __future__ import annotations

from collections.abc import Sequence

from chimera.inference.policies.policy import POLICIES, Contender, Policy


@POLICIES.register("first-come")
class FirstCome(Policy):
    """The job that was submitted first is next, and all others wait until its last batch is dispatched."""

    def choose(self, contenders: Sequence[Contender], workers: int) -> str:  # noqa: ARG002 - others count them
        """Return the first job."""
        return contenders[0].job

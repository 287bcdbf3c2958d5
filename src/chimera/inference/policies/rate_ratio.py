"""Workers in proportion to the difference between a job's rate and the sum of all rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from chimera.inference.policies.policy import POLICIES, Contender, Policy


@POLICIES.register("rate-ratio")
class RateRatio(Policy):
    """Job i gets the share ``(S - r_i) / sum_j (S - r_j)`` of the workers, with S the sum of the measured query rates r.

    The job that lacks the most workers is next. With two jobs, the equilibrium ratio of their workers is the square root of the
    ratio of their times per query. The ratio of their query rates is then the square root of the inverse ratio of the times.
    """

    def choose(self, contenders: Sequence[Contender], workers: int) -> str:
        """Return the job that lacks the most workers."""
        wanted = targets(contenders, workers)
        return max(contenders, key=lambda one: (wanted[one.job] - one.workers, one.loaded, -one.order)).job


def targets(contenders: Sequence[Contender], workers: int) -> Mapping[str, int]:
    """Return the target number of workers of each job: an even share for new jobs, the rule's share for others."""
    found = {one.job: workers // len(contenders) for one in contenders if not one.rate}
    left = workers - sum(found.values())
    rates = {one.job: one.rate / one.weight for one in contenders if one.rate}
    total = sum(rates.values())
    for job, rate in rates.items():
        share = (total - rate) / (total * (len(rates) - 1)) if len(rates) > 1 else 1.0
        found[job] = int(left * share)
    for place in range(workers - sum(found.values())):
        found[contenders[place % len(contenders)].job] += 1
    return found

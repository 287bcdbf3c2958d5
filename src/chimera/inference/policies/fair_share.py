"""Equal query rates, by weight."""

from __future__ import annotations

from collections.abc import Sequence

from chimera.inference.policies.policy import POLICIES, Contender, Policy


@POLICIES.register("fair-share")
class FairShare(Policy):
    """The job with the fewest queries dispatched per weight is next: start-time fair queueing (Goyal, Vin and Cheng 1996).

    A worker keeps a model that it has loaded while that job is within one batch of the lowest, so that models are not loaded
    for nothing. The lowest goes first all the same while nobody serves it.

    A job whose model is being loaded is the lowest for as long as that takes. So that it does not draw all workers meanwhile,
    at most an even share of them load the model of a job that has finished nothing in the last 10 s, of another half of that.
    """

    def choose(self, contenders: Sequence[Contender], workers: int) -> str:
        """Return the lowest, or the lowest of those loaded that are within one batch of it."""
        even = workers / len(contenders)
        ready = [one for one in contenders if one.loaded or one.loading + 1 <= _most_loading(one, even)] or contenders
        lowest = min(ready, key=_charge)
        if lowest.workers:
            near = [one for one in ready if one.loaded and one.charged - lowest.charged <= one.batch / one.weight]
            lowest = min(near, key=_charge, default=lowest)
        return lowest.job


def _charge(contender: Contender) -> tuple[float, int]:
    return contender.charged, contender.order


def _most_loading(contender: Contender, even: float) -> float:
    return max(even / 2 if contender.rate else even, 1.0)

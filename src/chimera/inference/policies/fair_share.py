"""Equal query rates, by weight."""

from __future__ import annotations

from collections.abc import Sequence

from chimera.inference.policies.policy import POLICIES, Contender, Policy


@POLICIES.register("fair-share")
class FairShare(Policy):
    """The job with the fewest queries dispatched per weight is next: start-time fair queueing (Goyal, Vin and Cheng 1996).

    A worker stays with a job whose model it has loaded while that job is within one batch of the lowest charge, which avoids
    loading models. But the job with the lowest charge goes first while no other worker serves it.

    A job stays the lowest while its model is loaded. So that the job does not take all workers meanwhile, the number of
    workers that load its model is limited. The limit is an even share if it has finished nothing in the last 10 s, else
    half of that.
    """

    def choose(self, contenders: Sequence[Contender], workers: int) -> str:
        """Return the job with the lowest charge, or the lowest of the loaded jobs within one batch of it."""
        even = workers / len(contenders)
        ready = [one for one in contenders if one.loaded or one.loading + 1 <= _most_loading(one, even)] or contenders
        lowest = min(ready, key=_charge)
        if lowest.workers:
            near = [one for one in ready if one.loaded and one.charged - lowest.charged <= one.batch / one.weight]
            lowest = min(near, key=_charge, default=lowest)
        return lowest.job


def _charge(contender: Contender) -> tuple[float, int, int]:
    return contender.charged, contender.workers, contender.order


def _most_loading(contender: Contender, even: float) -> float:
    return max(even / 2 if contender.rate else even, 1.0)

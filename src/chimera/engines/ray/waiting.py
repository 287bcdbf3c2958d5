"""Waits of the driver for values, with a time limit and checks that all actors are placed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from chimera.core.errors import ActorLost, TimeLimitError
from chimera.engines.failure import Failure
from chimera.engines.ray.actor_registry import ActorRegistry
from chimera.engines.ray.failure import translated
from chimera.engines.ray.refs import Ref
from chimera.engines.ray.reservation import Reservations

_PLACEMENT_CHECK_INTERVAL_S = 1.0


class Waiting:
    """The blocking calls of the driver.

    Parameters
    ----------
    registry : the actors, and which of them are not placed yet.
    reservations : the reservations, which have the time limits of placement.
    """

    def __init__(self, registry: ActorRegistry, reservations: Reservations) -> None:
        import ray

        self._ray, self._registry, self._reservations = ray, registry, reservations

    def values(self, refs: Sequence[Ref], deadline: float | None) -> list[Any]:
        """Return the values of the refs, or raise the first error among them.

        Raises
        ------
        TimeLimitError : values were missing at the deadline, or an actor waited too long for a place.
        ActorLost : an actor that computes one of the values died.
        """
        values = self._fetched(refs, deadline)
        for value in values:
            if type(value) is Failure:
                raise value.exception()
        return [ref.value(value) for ref, value in zip(refs, values, strict=True)]

    def until_done(self, refs: Sequence[Ref], count: int, deadline: float | None) -> set[Any]:
        """Return Ray's refs of finished values, once there are ``count`` or at the deadline."""
        objects = list(dict.fromkeys(ref.object for ref in refs))
        count = min(count, len(objects))
        while objects:
            patience = self.patience(_left(deadline)) if count else 0.0
            done, others = self._ray.wait(objects, num_returns=max(count, 1), timeout=patience, fetch_local=False)
            if others and len(done) >= count:  # Ray reports no more than requested
                more, _ = self._ray.wait(others, num_returns=len(others), timeout=0, fetch_local=False)
                done += more
            if len(done) >= count or _over(deadline):
                return set(done)
        return set()

    def patience(self, left: float | None) -> float | None:
        """Return how long to wait at a time; while actors are not placed yet, check that they do not wait too long.

        Parameters
        ----------
        left : remaining seconds of the caller's wait; None: no limit.
        """
        unplaced = self._registry.unplaced()
        if not unplaced:
            return left
        self._reservations.check_unplaced(unplaced)
        return _PLACEMENT_CHECK_INTERVAL_S if left is None else min(left, _PLACEMENT_CHECK_INTERVAL_S)

    def _fetched(self, refs: Sequence[Ref], deadline: float | None) -> list[Any]:
        from ray.exceptions import GetTimeoutError, RayError

        objects = [ref.object for ref in refs]
        while True:
            patience = self.patience(_left(deadline))
            try:
                values: list[Any] = self._ray.get(objects, timeout=patience)
                return values
            except GetTimeoutError as error:
                if _over(deadline):  # Ray may return a little early
                    method = refs[0].issued.method
                    raise TimeLimitError(f"{method!r} or a call beside it did not end within its time limit") from error
            except RayError as error:
                # Ray's frames hold the error, which would hold these refs and their values until the next garbage collection.
                raise self._error(refs, error.with_traceback(None)) from None

    def _error(self, refs: Sequence[Ref], error: BaseException) -> BaseException:
        """Return the exception for Ray's ``error``, taken from the first failed ref in order."""
        done, _ = self._ray.wait(list(dict.fromkeys(ref.object for ref in refs)), num_returns=1, timeout=0)
        call = next((ref.issued.method for ref in refs if ref.object in done), refs[0].issued.method)
        found = translated(error, call, self._registry.name_of_dead)
        if isinstance(found, ActorLost):
            self._registry.check_for_deaths(at_once=True)
        return found


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(deadline - time.monotonic(), 0.0)


def _over(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline

"""The driver waits for values: for so long and no longer, and seeing meanwhile that everybody finds a place."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from chimera.core.errors import ActorLost, TimeLimitError
from chimera.engines.failure import Failure
from chimera.engines.ray.failure import translated
from chimera.engines.ray.refs import Ref
from chimera.engines.ray.reservation import Reservations
from chimera.engines.ray.roster import Roster

_LOOK_FOR_PLACES_S = 1.0


class Waiting:
    """What blocks in the driver.

    Parameters
    ----------
    roster : who is there, and who has no place yet.
    reservations : knows how long somebody may wait for one.
    """

    def __init__(self, roster: Roster, reservations: Reservations) -> None:
        import ray

        self._ray, self._roster, self._reservations = ray, roster, reservations

    def values(self, refs: Sequence[Ref], deadline: float | None) -> list[Any]:
        """Return what the refs stand for, or raise the first error among them.

        Raises
        ------
        TimeLimitError : they did not stand at the deadline, or somebody waited too long for a place.
        ActorLost : one of those who make them died.
        """
        values = self._fetched(refs, deadline)
        for value in values:
            if type(value) is Failure:
                raise value.exception()
        return [ref.value(value) for ref, value in zip(refs, values, strict=True)]

    def until_done(self, refs: Sequence[Ref], count: int, deadline: float | None) -> set[Any]:
        """Return Ray's refs of what is done, once so many are or at the deadline."""
        objects = list(dict.fromkeys(ref.object for ref in refs))
        count = min(count, len(objects))
        while objects:
            patience = self.patience(_left(deadline)) if count else 0.0
            done, others = self._ray.wait(objects, num_returns=max(count, 1), timeout=patience, fetch_local=False)
            if others and len(done) >= count:  # Ray tells of no more than it was asked for
                more, _ = self._ray.wait(others, num_returns=len(others), timeout=0, fetch_local=False)
                done += more
            if len(done) >= count or _over(deadline):
                return set(done)
        return set()

    def patience(self, left: float | None) -> float | None:
        """Return how long to wait at a stretch; while actors have no place yet, see that they do not wait too long.

        Parameters
        ----------
        left : for how long the caller would wait; None for ever.
        """
        unplaced = self._roster.unplaced()
        if not unplaced:
            return left
        self._reservations.check_unplaced(unplaced)
        return _LOOK_FOR_PLACES_S if left is None else min(left, _LOOK_FOR_PLACES_S)

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
                    said = refs[0].issued.method
                    raise TimeLimitError(f"{said!r} or a call beside it did not end within its time limit") from error
            except RayError as error:
                # Ray's frames hold the error, which would hold these refs and their values until the next collection.
                raise self._error(refs, error.with_traceback(None)) from None

    def _error(self, refs: Sequence[Ref], error: BaseException) -> BaseException:
        """Return what to raise for Ray's ``error``: the first ref in order that failed says it."""
        done, _ = self._ray.wait(list(dict.fromkeys(ref.object for ref in refs)), num_returns=1, timeout=0)
        call = next((ref.issued.method for ref in refs if ref.object in done), refs[0].issued.method)
        found = translated(error, call, self._roster.name_of_dead)
        if isinstance(found, ActorLost):
            self._roster.look_for_deaths(at_once=True)
        return found


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(deadline - time.monotonic(), 0.0)


def _over(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline

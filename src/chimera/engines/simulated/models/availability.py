"""The availability model: the times at which actors join, leave and crash, and at which clients are on."""

from __future__ import annotations

import itertools
import math
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property, partial
from typing import Any, Literal

from chimera.core.errors import ConfigurationError
from chimera.engines.simulated.models.names import CLIENTS, full_name
from chimera.engines.simulated.models.presence_models import AVAILABILITY, AvailabilityModel
from chimera.engines.simulated.models.records import read_records
from chimera.engines.simulated.options import check_range, named_option
from chimera.engines.simulated.presence import Presence


@dataclass(frozen=True, kw_only=True)
class Availability:
    """Virtual times in seconds, by actor name. The times apply to the first actor of that name, not to its replacement.

    Attributes
    ----------
    join : time from which the actor exists; its first call waits until then.
    leave : time after which calls raise `ActorLost`; a call that runs at that time completes.
    crash : time of the actor's death; the call that runs at that time, and later calls, raise `ActorLost`.
    path : a CSV file with columns ``client,on_s,off_s``: a row for each interval in which a client is on. Actors that the file
        does not name are always on. Without ``period_s`` a client is lost after its last interval.
    period_s : the intervals of the file repeat after this many seconds.
    model : a name or a table: ``markov`` or ``diurnal``. It replaces ``path``.
    clients : pattern of the names of the actors to which the model applies; default ``worker *``.
    interrupted : what happens to a call if its client goes off: ``continue`` (default) when the client is on again, or
        ``restart``, which does all its work again. After ten restarts a call continues, so that each call ends.
    """

    join: Mapping[str, float] = field(default_factory=dict)
    leave: Mapping[str, float] = field(default_factory=dict)
    crash: Mapping[str, float] = field(default_factory=dict)
    path: str | None = None
    period_s: float | None = None
    model: Any = None
    clients: str = CLIENTS
    interrupted: Literal["continue", "restart"] = "continue"

    def __post_init__(self) -> None:
        for what in ("join", "leave", "crash"):
            for name, time_s in getattr(self, what).items():
                check_range(f"{what}, {name!r}", time_s)
        if self.path is not None and self.model is not None:
            raise ConfigurationError("path and model exclude each other: intervals come from one of them")
        if self.period_s is not None:
            check_range("period_s", self.period_s, above_zero=True)
            if self.path is None:
                raise ConfigurationError("period_s repeats the intervals of a file: set path, or period_s of the model")
        if self.interrupted not in ("continue", "restart"):
            raise ConfigurationError(f"interrupted is 'continue' or 'restart', not {self.interrupted!r}")
        if self.model is not None:
            object.__setattr__(self, "model", named_option(AVAILABILITY, self.model, AvailabilityModel))
        if self.path is not None:
            _ = self._recorded  # mistakes in the file are found before the run

    @property
    def varies(self) -> bool:
        """Whether clients change between on and off."""
        return self.path is not None or self.model is not None

    def presence(self, seed: int, name: str) -> Presence | None:
        """Return when an actor is on; None if it always is."""
        restarts = self.interrupted == "restart"
        if self.model is not None and fnmatchcase(name, self.clients):
            return Presence(name, partial(self.model.intervals, seed, name), restarts=restarts)
        if self.path is None or (borders_s := self._recorded.get(name)) is None:
            return None
        ends_s = borders_s[-1] if self.period_s is None else math.inf
        return Presence(name, partial(_repeated, borders_s, self.period_s), restarts=restarts, ends_s=ends_s)

    @cached_property
    def _recorded(self) -> dict[str, array[float]]:
        """Begin and end of the intervals of each client, in turn."""
        found: dict[str, array[float]] = {}
        for record in read_records(self.path or "", ("client", "on_s", "off_s")):
            on_s, off_s = record.number("on_s"), record.number("off_s", finite=False)
            name = full_name(record.text("client"))
            if name == "driver":
                record.refuse("client", "is 'driver', which is always on")
            borders_s = found.setdefault(name, array("d"))
            if off_s <= on_s:
                record.refuse("off_s", f"is {off_s:g}: it must be above on_s = {on_s:g}")
            if borders_s and on_s < borders_s[-1]:
                record.refuse("on_s", f"is {on_s:g}: the interval before of this client ends at {borders_s[-1]:g}")
            if self.period_s is not None and off_s > self.period_s:
                record.refuse("off_s", f"is {off_s:g}: it must be at most period_s = {self.period_s:g}")
            borders_s.extend((on_s, off_s))
        return found


def _repeated(borders_s: array[float], period_s: float | None) -> Iterator[tuple[float, float]]:
    """Yield the intervals of a file, again and again if there is a period."""
    pairs = list(zip(borders_s[::2], borders_s[1::2], strict=True))
    if period_s is None:
        yield from pairs
        return
    ends_s = [borders_s[0] + period_s, *borders_s[1:-1:2]]
    if ends_s[0] == borders_s[-1] and ends_s[1:] == list(borders_s[2::2]):  # always on: there is no border to find
        yield 0.0, math.inf
        return
    for number in itertools.count():
        begin_s, next_s = number * period_s, (number + 1) * period_s
        for on_s, off_s in pairs:
            yield begin_s + on_s, next_s if off_s == period_s else begin_s + off_s

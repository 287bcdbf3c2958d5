"""What a coordinator and the seats that are to run a job say to one another before it begins.

Two-phase commit (Gray 1978, "Notes on Data Base Operating Systems") whose every promise is a lease (Gray and Cheriton 1989,
"Leases: An Efficient Fault-Tolerant Mechanism for Distributed File Cache Consistency"): a seat keeps its place free for one
attempt for so many seconds, and then, if nothing more was said, for nobody. So whoever vanishes holds up nobody for longer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from msgspec import Struct

from chimera.core.errors import ConfigurationError
from chimera.jobs.store.states import Event


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How long each phase may take, all in seconds.

    Attributes
    ----------
    can_s : until all seats have said that they can.
    prepare_s : until all have received and verified what the job needs.
    commit_s : until all have begun; and so long a message may be on its way.
    alive_s : a seat that has begun is free after so long without a sign of life of the attempt. It is longer than ``commit_s``,
        so that the first seat to begin is there still when the last one has.
    again_s : a message without an answer is sent again after so long.
    """

    can_s: float = 2.0
    prepare_s: float = 60.0
    commit_s: float = 5.0
    alive_s: float = 10.0
    again_s: float = 0.5

    def __post_init__(self) -> None:
        if not min(self.can_s, self.prepare_s, self.commit_s, self.alive_s, self.again_s) > 0:
            raise ConfigurationError("each limit of the start of a job is above 0 s")
        if self.alive_s <= self.commit_s:
            raise ConfigurationError(f"alive_s = {self.alive_s} has to be above commit_s = {self.commit_s}")

    @property
    def longest_s(self) -> float:
        """So long at most a seat keeps its place for an attempt that it does not begin."""
        return self.can_s + self.prepare_s + 2 * self.commit_s


class Attempt(Struct, frozen=True):
    """An attempt at a job. Numbers of a job's attempts grow, so one is over once a later one has been heard of."""

    job: str
    number: int


class Needs(Struct, frozen=True):
    """What a worker must have: compatible versions of Chimera, Python and torch, and modules that it can import."""

    versions: Mapping[str, str] = {}
    requires: tuple[str, ...] = ()


class Can(Struct, frozen=True, tag=True):
    """Are you free, and have you what it needs? Then keep your place for ``hold_s``."""

    attempt: Attempt
    needs: Needs
    hold_s: float


class Prepare(Struct, frozen=True, tag=True):
    """Receive and verify what the job needs, as ``order`` says, and keep your place for ``hold_s``."""

    attempt: Attempt
    order: Mapping[str, Any]
    hold_s: float


class Commit(Struct, frozen=True, tag=True):
    """All are ready, and it is written down: begin. Without a sign of life end after ``hold_s``."""

    attempt: Attempt
    hold_s: float


class Release(Struct, frozen=True, tag=True):
    """That attempt is over: be free, and take no part in it any more, whatever else arrives."""

    attempt: Attempt
    reason: str


class Yes(Struct, frozen=True, tag=True):
    """It can, and keeps its place."""

    attempt: Attempt


class Ready(Struct, frozen=True, tag=True):
    """It has verified all."""

    attempt: Attempt


class Started(Struct, frozen=True, tag=True):
    """It has begun."""

    attempt: Attempt


class No(Struct, frozen=True, tag=True):
    """It cannot, or can no more; ``lasting`` where asking it again would change nothing."""

    attempt: Attempt
    reason: str
    lasting: bool = False


ToSeat: TypeAlias = Can | Prepare | Commit | Release
ToCoordinator: TypeAlias = Yes | Ready | Started | No


class Check(Struct, frozen=True):
    """For whoever runs the seat: find out whether this machine has what is needed, and tell `Seat.did`."""

    attempt: Attempt
    needs: Needs


class Verify(Struct, frozen=True):
    """For whoever runs the seat: receive and verify what is ordered, and tell `Seat.did`."""

    attempt: Attempt
    order: Mapping[str, Any]


class Begin(Struct, frozen=True):
    """For whoever runs the seat: the attempt begins here."""

    attempt: Attempt


class End(Struct, frozen=True):
    """For whoever runs the seat: what goes on for this attempt has to end, before any effect that follows."""

    attempt: Attempt
    reason: str


Effect: TypeAlias = Check | Verify | Begin | End


class Send(Struct, frozen=True):
    """For whoever runs the coordinator: send this."""

    seat: str
    message: ToSeat


class Decide(Struct, frozen=True):
    """For whoever runs the coordinator: write down that the attempt is committed, and then call `Start.decided`."""

    attempt: Attempt


class Began(Struct, frozen=True):
    """For whoever runs the coordinator: all seats have begun."""

    attempt: Attempt


class Over(Struct, frozen=True):
    """For whoever runs the coordinator: the attempt is over, and this is what happens to the job."""

    attempt: Attempt
    event: Event
    reason: str


Act: TypeAlias = Send | Decide | Began | Over

"""The driver side of the MPI engine: rank 0, which runs the strategy; actors are threads of the other ranks."""

from __future__ import annotations

import secrets
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from chimera.core.engine import ENGINES, Disturbance, Resources
from chimera.core.errors import ConfigurationError, RunError, TimeLimitError
from chimera.core.trace import TraceRow
from chimera.engines.handle import CONSTRUCT, receive_handles
from chimera.engines.mpi_launch import launch_of, needs_ranks
from chimera.engines.real_time import RealTime

if TYPE_CHECKING:
    from chimera.engines.mpi.calls import MpiActor, Peer, Ref
    from chimera.engines.mpi.group_handle import GroupHandle
    from chimera.engines.mpi.job import Job
    from chimera.engines.mpi.messages import Row
    from chimera.engines.mpi.shared import SharedFile

_ANSWER_S = 5.0
_SIGNS_S = 0.5


@ENGINES.register("mpi", requires="mpi4py", extra="mpi")
class Mpi(RealTime):
    """An engine of MPI ranks, started by mpiexec or srun on one machine or on many. Rank 0 drives, the others host actors.

    On another rank than 0, creating the engine hosts actors until rank 0 exits, and then ends this process.

    Parameters
    ----------
    preload : modules that the other ranks import while the driver prepares a run; default: none.
    driver_works : whether rank 0 hosts actors, too.
    actors_per_rank : the largest number of actors on a rank; default: no limit.
    """

    def __init__(
        self, *, preload: Sequence[str] = (), driver_works: bool = False, actors_per_rank: int | None = None
    ) -> None:
        if actors_per_rank is not None and actors_per_rank < 1:
            raise ConfigurationError(
                f"engine 'mpi', option 'actors_per_rank': it must be at least 1, not {actors_per_rank}"
            )
        launch = launch_of()
        if launch.size == 1 and not driver_works:
            raise needs_ranks()
        from chimera.engines.mpi import job
        from chimera.engines.mpi.messages import PRELOAD
        from chimera.engines.mpi.shared import SharedFile

        if launch.rank > 0:
            job.host()
            raise SystemExit(0)
        self._job = job.lead()
        super().__init__()
        self._rank = self._job.rank
        self.key = f"mpi-{secrets.token_hex(6)}"
        self._hosts = range(0 if driver_works else 1, self._job.size)
        self._most = actors_per_rank
        for rank in range(1, self._job.size):
            self._rank.messenger.send(rank, (PRELOAD, list(preload)))
        self._actors: dict[int, MpiActor] = {}  # by their number in the job
        self._rows: dict[int, list[Row]] = {}
        self._signs: dict[int, float] = {}
        self._actors_may_call = False
        receive_handles(self)
        self._shared = SharedFile(self._job.sharing)
        self._end = weakref.finalize(self, _end, self._job, self._actors, self._shared)

    def reserve(self, resources: Sequence[Resources], timeout_s: float | None = None) -> None:  # noqa: ARG002
        """Check that there are enough ranks for these actors; there is nothing to wait for.

        Raises
        ------
        TimeLimitError : ``actors_per_rank`` leaves room for fewer actors.
        """
        self._check_open()
        for each in resources:
            if each.gpus or each.memory_mb is not None or each.custom:
                raise ConfigurationError(
                    f"the engine mpi gives an actor threads only, not {each}: request other resources from the launcher"
                )
        if self._most is None:
            return
        load = self._job.load()
        free = sum(max(self._most - load[rank], 0) for rank in self._hosts)
        if len(resources) > free:
            raise TimeLimitError(
                f"{len(resources)} actors need a rank, and {len(self._hosts)} ranks have room for {free}, with "
                f"actors_per_rank = {self._most}: start more ranks (mpiexec -n), or allow more actors on each"
            )

    def spawn(
        self,
        actor_type: Callable[..., Any],
        /,
        *args: Any,
        resources: Resources | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> MpiActor:
        """Create an actor on the rank with the fewest actors, and return its handle at once."""
        from chimera.engines.mpi.calls import MpiActor, Peer
        from chimera.engines.mpi.messages import SPAWN

        self._check_open()
        self.reserve([resources or Resources()])
        name = name or f"actor {len(self._actors)}"
        rank, actor = self._job.place(self._hosts)
        handle = self._actors[actor] = MpiActor(self, Peer(rank, actor, name))
        self._rows[actor] = []
        threads = (resources or Resources()).threads
        place = self._shared.place_of(actor, rank)
        self._rank.messenger.send(
            rank, (SPAWN, self.key, actor, name, threads, place and tuple(place), [*map(str, sys.path)])
        )
        self.call(handle._channel, CONSTRUCT, actor_type, *args, **kwargs)
        return handle

    def put(self, value: Any) -> Ref:
        """Keep a value on this rank, once."""
        self._check_open()
        return self._rank.calls.put(value)

    def get(self, refs: Any, timeout_s: float | None = None) -> Any:
        """Return the value of a ref, or the values of a sequence; arrays are read-only."""
        self._check_open()
        return self._rank.calls.get(refs, timeout_s)

    def wait(self, refs: Iterable[Ref], count: int = 1, timeout_s: float | None = None) -> tuple[list[Ref], list[Ref]]:
        """Return (done, pending) once ``count`` refs are done or the time is over."""
        self._check_open()
        return self._rank.calls.wait(list(refs), count, timeout_s)

    def group(self, actors: Sequence[MpiActor]) -> GroupHandle:
        """Make a group of these actors, in rank order."""
        from chimera.engines.mpi.group import max_members_per_rank
        from chimera.engines.mpi.group_handle import GroupHandle

        self._check_open()
        members: list[Peer] = [actor._channel for actor in actors]
        meeting = self._shared.meeting_of([member.actor for member in members])
        return GroupHandle(self._job.new_tags(max_members_per_rank(members) ** 2), members, meeting)

    def kill(self, actor: MpiActor) -> None:
        """End the actor, not its rank, and return when the driver knows of its death.

        Its thread ends where it waits, when it declares `work`, or at the end of its call.

        Raises
        ------
        RunError : its rank does not answer.
        """
        from chimera.engines.mpi.messages import KILL

        self._check_open()
        peer: Peer = actor._channel
        if peer.actor not in self._rank.dead:
            self._rank.messenger.send(peer.rank, (KILL, peer.actor))
        deadline_s = time.monotonic() + _ANSWER_S
        with self._rank.changed:
            while peer.actor not in self._rank.dead:
                if not self._rank.changed.wait(deadline_s - time.monotonic()):
                    raise RunError(
                        f"rank {peer.rank}, which hosts {peer.name}, does not answer: end the job, "
                        "and resume the run from its last checkpoint in a new one"
                    )

    def disturb(self, actor: MpiActor, disturbance: Disturbance) -> None:
        """Raise: several actors may share a process, which cannot be stopped for one of them.

        Raises
        ------
        ConfigurationError : always.
        """
        self.check_disturbance(disturbance)
        raise AssertionError(actor)

    def check_disturbance(self, disturbance: Disturbance) -> None:
        """Raise the error of `disturb`. The trainer calls it before a run with faults starts."""
        raise ConfigurationError(
            f"the engine mpi cannot inject {disturbance.what!r}, because actors are threads of ranks: "
            "use 'kill', or the engine local, ray or simulated"
        )

    def silent(self, after_s: float) -> list[MpiActor]:
        """Return the handles of the living actors without a heartbeat for ``after_s`` seconds."""
        from chimera.engines.mpi.messages import SIGNS

        if not self._end.alive:
            return []
        for signs in self._ask(SIGNS, self._living(), _SIGNS_S):
            self._signs |= signs
        before_s = time.monotonic() - after_s
        living = self._living()
        return [self._actors[actor] for actor in living if self._signs.setdefault(actor, before_s + after_s) < before_s]

    def trace(self) -> list[TraceRow]:
        """Return the rows of the calls that ended since the last `trace`."""
        from chimera.engines.mpi.messages import ROWS

        if self._actors_may_call and self._end.alive:
            for rows in self._ask(ROWS, list(self._actors), _ANSWER_S):
                for actor, found in rows.items():
                    self._rows[actor] += found
        with self._rank.changed:
            taken = {actor: list(rows) for actor, rows in self._rows.items()}
            for rows in self._rows.values():
                rows.clear()
        return [
            self._row(rank, self._actors[actor].name, row)
            for rank, actor in enumerate(self._actors)
            for row in sorted(taken[actor], key=lambda row: row[1])
        ]

    def lost(self) -> list[MpiActor]:
        """Return the handles of the dead actors, in the order of their deaths."""
        with self._rank.changed:
            return [self._actors[actor] for actor in self._rank.dead if actor in self._actors]

    def handle(self, _: int, actor: int, __: str) -> MpiActor:
        """Return the driver's handle on an actor, for a pickled handle that an actor returned."""
        return self._actors[actor]

    def place(self, peer: Peer) -> tuple[int, int, str]:
        """Return the values that are pickled with a handle."""
        self._actors_may_call = True
        return peer.rank, peer.actor, peer.name

    def call(self, peer: Peer, method: str, /, *args: Any, returns: int | None = None, **kwargs: Any) -> Any:
        """Issue a call. Methods of handles call this."""
        self._check_open()
        return self._rank.calls.issue(peer, method, returns, args, kwargs, self._rows[peer.actor])

    def _living(self) -> list[int]:
        return [actor for actor in self._actors if actor not in self._rank.dead]

    def _ask(self, kind: int, actors: Iterable[int], within_s: float) -> list[Any]:
        """Ask the ranks of these actors; return the answers that arrive in time."""
        return ask(self._job, kind, [self._actors[actor]._channel for actor in actors], within_s)

    def _row(self, rank: int, name: str, row: Row) -> TraceRow:
        call, start_s, end_s, transfer_s, wait_s, bytes_in, bytes_out, samples, error = row
        return TraceRow(
            actor=name,
            rank=rank,
            call=call,
            start_s=start_s - self._began_s,
            end_s=end_s - self._began_s,
            bytes_in=bytes_in,
            bytes_out=bytes_out,
            transfer_s=transfer_s,
            wait_s=wait_s,
            samples=samples,
            error=error,
        )


def ask(job: Job, kind: int, peers: Sequence[Peer], within_s: float) -> list[Any]:
    """Send a request about actors to the ranks that host them; return the answers that arrive in time."""
    actors_by_rank: dict[int, list[int]] = {}
    for peer in peers:
        actors_by_rank.setdefault(peer.rank, []).append(peer.actor)
    rank = job.rank
    with rank.changed:
        for other in actors_by_rank:
            rank.answers.pop((kind, other), None)
    for other, actors in actors_by_rank.items():
        rank.messenger.send(other, (kind, actors))
    with rank.changed:
        rank.changed.wait_for(lambda: all((kind, other) in rank.answers for other in actors_by_rank), within_s)
        return [rank.answers.pop((kind, other)) for other in actors_by_rank if (kind, other) in rank.answers]


def _end(job: Job, actors: dict[int, MpiActor], shared: SharedFile) -> None:
    """End the actors of an engine, and free their values on all ranks."""
    from chimera.engines.mpi.messages import CLOSE

    peers: list[Peer] = [handle._channel for handle in actors.values()]
    ask(job, CLOSE, peers, _ANSWER_S)
    for actor in actors:
        job.placed.pop(actor, None)
    shared.close()

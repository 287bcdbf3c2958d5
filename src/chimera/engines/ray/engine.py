"""The Ray engine's driver side: each actor is a Ray actor, each ref one of Ray's."""

from __future__ import annotations

import secrets
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from chimera.core.engine import ENGINES, Disturbance, Resources
from chimera.core.errors import ConfigurationError
from chimera.core.trace import TraceRow
from chimera.engines.handle import receive_handles
from chimera.engines.ray.calls import Calls
from chimera.engines.ray.disturber import Disturbers
from chimera.engines.ray.group import GroupHandle
from chimera.engines.ray.host import CONSTRUCT, Host, clock_of_this_machine
from chimera.engines.ray.pulse import SEEN_WITHIN_S, forget_engine, look
from chimera.engines.ray.refs import Lane, RayActor, Ref
from chimera.engines.ray.rendezvous import living_actors
from chimera.engines.ray.reservation import Placement, Reservations
from chimera.engines.ray.roster import Roster
from chimera.engines.ray.session import Session
from chimera.engines.ray.shared import Shared
from chimera.engines.ray.waiting import Waiting
from chimera.engines.real_time import RealTime

_LOOK_FOR_PROCESS_S = 0.05
_LEAVING_S = 5.0


@ENGINES.register("ray", requires="ray", extra="ray")
class Ray(RealTime):
    """Actors of Ray, on this machine or a cluster; values travel through Ray's object store, or through memory that they share.

    A session of Ray that this process has already is used and left as it is; otherwise one is joined or started.

    Parameters
    ----------
    address : of a running Ray to join, ``"auto"`` or ``"host:port"``; without one, a Ray is started on this machine.
    reserve_timeout_s : how long to wait until the cluster has room for what is reserved or spawned.
    cpus_per_actor : how many of Ray's CPUs each actor takes; by default as many as its `Resources` give it threads.
    placement : ``"pack"`` places actors on few nodes, ``"spread"`` on many.
    cpus : how many CPUs a Ray started here pretends to have, and so how many actors fit; by default 64 or all there are.
    object_store_bytes : the size of the object store of a Ray started here; by default 2 GiB, or half of what is free.
    working_dir : the folder whose code the actors of a Ray joined at ``address`` import; by default the Python files
        of the driver's own folders on its import path.
    show_output : whether what actors print is shown in the driver's terminal.
    """

    def __init__(
        self,
        *,
        address: str | None = None,
        reserve_timeout_s: float = 60.0,
        cpus_per_actor: float | None = None,
        placement: Placement = "pack",
        cpus: int | None = None,
        object_store_bytes: int | None = None,
        working_dir: str | None = None,
        show_output: bool = False,
    ) -> None:
        if placement not in ("pack", "spread"):
            raise ConfigurationError(f"engine 'ray', option 'placement': {placement!r} is neither 'pack' nor 'spread'")
        self._session = Session.enter(
            address=address,
            cpus=cpus,
            object_store_bytes=object_store_bytes,
            working_dir=working_dir,
            show_output=show_output,
        )
        import ray

        self._ray = ray
        super().__init__()
        self._clock = clock_of_this_machine()
        self.key = f"chimera-{secrets.token_hex(6)}"
        receive_handles(self)
        self._host = ray.remote(Host)
        self._reservations = Reservations(cpus_per_actor, placement, reserve_timeout_s)
        self._roster = Roster(self._reservations.give_back)
        self._shared = Shared(self.key, self._clock[0], ray.get_runtime_context().get_node_id())
        self._handles: list[RayActor] = []
        self._groups = 0
        self._calls = Calls(self._roster, self._began_s)
        self._waiting = Waiting(self._roster, self._reservations)
        self._disturbers = Disturbers(self.key)
        parts = self._session, self.key, self._roster.lanes, self._reservations, self._disturbers, self._shared
        self._end = weakref.finalize(self, _end, *parts)

    def reserve(self, resources: Sequence[Resources], timeout_s: float | None = None) -> None:
        """Hold room for actors that need these, all or none; the spawns that follow with equal resources take it.

        Raises
        ------
        TimeLimitError : there was no room within ``timeout_s``, by default ``reserve_timeout_s``; says what was asked and what
            is free.
        """
        self._check_open()
        self._roster.look_for_deaths(at_once=True)  # a reserved place may have become free
        self._reservations.reserve(resources, timeout_s)

    def spawn(
        self,
        actor_type: Callable[..., Any],
        /,
        *args: Any,
        resources: Resources | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> RayActor:
        """Start a Ray actor and return its handle at once."""
        self._check_open()
        self._roster.look_for_deaths()  # as in `reserve`
        rank, resources = len(self._handles), resources or Resources()
        key, name = f"{self.key}-{rank}", name or f"actor {rank}"
        seat = self._reservations.take(resources)
        options = self._reservations.options(resources, seat)
        side = self._shared.side_of(name)
        handle = self._host.options(name=key, max_restarts=0, max_task_retries=0, **options).remote(
            key,
            name,
            resources.threads,
            sys.path,
            self._clock,
            self._shared.place,
            None if side is None else side.actor,
        )
        lane = Lane(key, name, rank, resources, handle, seat, side)
        self._roster.add(lane)
        self._handles.append(RayActor(self, lane))
        self.call(lane, CONSTRUCT, actor_type, *args, **kwargs)
        lane.made = lane.calls[-1].row
        return self._handles[rank]

    def put(self, value: Any) -> Ref:
        """Store a value in Ray's object store, once."""
        self._check_open()
        return self._calls.put(value)

    def get(self, refs: Any, timeout_s: float | None = None) -> Any:
        """Return the value of a ref, or the values of a sequence; arrays are read-only views of shared memory."""
        self._check_open()
        several = isinstance(refs, Sequence)
        asked: list[Ref] = list(refs) if several else [refs]
        values = self._waiting.values(asked, None if timeout_s is None else time.monotonic() + timeout_s)
        return values if several else values[0]

    def wait(self, refs: Iterable[Ref], count: int = 1, timeout_s: float | None = None) -> tuple[list[Ref], list[Ref]]:
        """Return (done, pending) once ``count`` refs are done or the time is over."""
        self._check_open()
        asked = list(refs)
        ready = self._waiting.until_done(asked, count, None if timeout_s is None else time.monotonic() + timeout_s)
        finished = [ref for ref in asked if ref.object in ready]
        if len(finished) > 1:
            self._calls.take_rows()
            finished.sort(key=lambda ref: ref.issued.end_s)
        return finished, [ref for ref in asked if ref.object not in ready]

    def group(self, actors: Sequence[RayActor]) -> GroupHandle:
        """Make a group of these actors, in rank order."""
        self._check_open()
        self._groups += 1
        lanes = [actor._lane for actor in actors]
        meeting = self._shared.meeting_of([lane.side for lane in lanes])
        return GroupHandle(f"{self.key}/{self._groups}", [(lane.key, lane.name) for lane in lanes], meeting)

    def kill(self, actor: RayActor) -> None:
        """Have Ray kill the actor's process."""
        self._check_open()
        lane = actor._lane
        if lane.died_s is None:
            self._disturbers.kill(lane.pulse.process)
            self._ray.kill(lane.handle)
            self._roster.note_death(lane)

    def disturb(self, actor: RayActor, disturbance: Disturbance) -> None:
        """Stop the actor's process, or stop it again and again; return when that has begun.

        The first time on a node starts a small Ray actor there, which takes a second or so.

        Raises
        ------
        TimeLimitError : the actor has no place within ``reserve_timeout_s``, or its node does not answer.
        """
        self._check_open()
        lane = actor._lane
        self._roster.look_for_deaths(at_once=True)
        while lane.died_s is None:
            look([lane])
            if lane.pulse.process is not None:
                self._disturbers.disturb(lane.pulse.process, disturbance)
                return
            self._waiting.patience(None)
            time.sleep(_LOOK_FOR_PROCESS_S)
            self._roster.look_for_deaths()

    def silent(self, after_s: float) -> list[RayActor]:
        """Return the handles of the living that have given no sign of life for ``after_s`` seconds."""
        if not self._end.alive:
            return []
        self._roster.look_for_deaths()
        living = [lane for lane in self._roster.lanes if lane.died_s is None]
        look(living)
        before_s = time.monotonic() - after_s - SEEN_WITHIN_S
        unplaced = self._roster.unplaced()
        begun = [lane for lane in living if lane not in unplaced]
        return [self._handles[lane.rank] for lane in begun if lane.pulse.sign_s <= before_s]

    def trace(self) -> list[TraceRow]:
        """Return the rows of the calls that ended since the last time."""
        if self._end.alive:
            self._calls.take_all_rows()
        return self._calls.give_rows()

    def lost(self) -> list[RayActor]:
        """Return the handles of the dead, in the order in which their deaths became known."""
        if self._end.alive:
            self._roster.look_for_deaths()
        return [self._handles[lane.rank] for lane in self._roster.deaths]

    def close(self) -> None:
        """Kill the actors, give back what was reserved, and end Ray if it was started here.

        Arrays that were fetched stay; after leaving a cluster that goes on, its store may use their memory again: copy them.
        """
        super().close()

    def handle(self, rank: int, *_: Any) -> RayActor:
        """Return the handle on an actor, for one that comes back from an actor."""
        return self._handles[rank]

    def place(self, lane: Lane) -> tuple[int, str, str, Any, Any]:
        """Return what must travel with a handle; from then on actors may call one another."""
        self._calls.actors_may_call = True
        return lane.rank, lane.key, lane.name, lane.handle, lane.made

    def call(self, lane: Lane, method: str, /, *args: Any, returns: int | None = None, **kwargs: Any) -> Any:
        """Issue a call; the handle's methods lead here."""
        self._check_open()
        return self._calls.issue(lane, method, returns, args, kwargs)


def _end(
    session: Session, key: str, lanes: list[Lane], reservations: Reservations, disturbers: Disturbers, shared: Shared
) -> None:
    import ray

    try:
        if ray.is_initialized():
            names = {*disturbers.close(), *(lane.key for lane in lanes)}
            for lane in lanes:
                ray.kill(lane.handle)
            reservations.close()
            deadline = time.monotonic() + _LEAVING_S
            while names & living_actors() and time.monotonic() < deadline:
                time.sleep(0.01)
            forget_engine(key)
    finally:
        for lane in lanes:
            if lane.side is not None:
                lane.side.closed = True
            lane.calls.clear()
            lane.handle = lane.made = None
            lane._remotes.clear()
        shared.close()
        session.leave()

"""The driver side of the Ray engine: each actor is a Ray actor, each ref a Ray object reference."""

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
from chimera.engines.handle import CONSTRUCT, receive_handles
from chimera.engines.machine_clock import clock_of_this_machine
from chimera.engines.ray.actor.host import Host
from chimera.engines.ray.actor_registry import ActorRegistry
from chimera.engines.ray.calls import Calls
from chimera.engines.ray.fault_injector import FaultInjectors
from chimera.engines.ray.groups.group import GroupHandle
from chimera.engines.ray.groups.rendezvous import living_actors
from chimera.engines.ray.heartbeat import SEEN_WITHIN_S, forget_engine, read_heartbeats
from chimera.engines.ray.refs import Channel, RayActor, Ref
from chimera.engines.ray.reservation import Placement, Reservations
from chimera.engines.ray.session import Session
from chimera.engines.ray.shared import Shared
from chimera.engines.ray.waiting import Waiting
from chimera.engines.real_time import RealTime

_PROCESS_CHECK_INTERVAL_S = 0.05
_LEAVING_S = 5.0


@ENGINES.register("ray", requires="ray", extra="ray")
class Ray(RealTime):
    """An engine of Ray actors on this machine or a cluster. Values pass through Ray's object store or through shared memory.

    If this process already has a Ray session, the engine uses it and leaves it running. Otherwise it joins or starts a session.

    Parameters
    ----------
    address : address of a running Ray to join, ``"auto"`` or ``"host:port"``; default: start Ray on this machine.
    reserve_timeout_s : seconds to wait until the cluster has room for reserved or spawned actors.
    cpus_per_actor : Ray CPUs that each actor takes; default: the number of threads in its `Resources`.
    placement : ``"pack"`` places actors on few nodes, ``"spread"`` on many.
    cpus : number of CPUs that a Ray started here declares, which limits the number of actors; default: 64, or all CPUs.
    object_store_bytes : size of the object store of a Ray started here; default: 2 GiB, or half of the free memory.
    working_dir : folder with the code that actors import if Ray was joined at ``address``; default: the Python files of
        the driver's own folders on its import path.
    show_output : whether the driver's terminal shows the output of actors.
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
        self._registry = ActorRegistry(self._reservations.give_back)
        self._shared = Shared(self.key, self._clock[0], ray.get_runtime_context().get_node_id())
        self._handles: list[RayActor] = []
        self._groups = 0
        self._calls = Calls(self._registry, self._began_s)
        self._waiting = Waiting(self._registry, self._reservations)
        self._fault_injectors = FaultInjectors(self.key)
        parts = (
            self._session,
            self.key,
            self._registry.channels,
            self._reservations,
            self._fault_injectors,
            self._shared,
        )
        self._end = weakref.finalize(self, _end, *parts)

    def reserve(self, resources: Sequence[Resources], timeout_s: float | None = None) -> None:
        """Reserve room for actors with these resources, all or none. Later spawns with equal resources use it.

        Raises
        ------
        TimeLimitError : there was no room within ``timeout_s`` (default: ``reserve_timeout_s``). The message lists the
            requested and the free resources.
        """
        self._check_open()
        self._registry.check_for_deaths(at_once=True)  # a reserved place may have become free
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
        self._registry.check_for_deaths()  # as in `reserve`
        rank, resources = len(self._handles), resources or Resources()
        key, name = f"{self.key}-{rank}", name or f"actor {rank}"
        reserved_place = self._reservations.take(resources)
        options = self._reservations.options(resources, reserved_place)
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
        channel = Channel(key, name, rank, resources, handle, reserved_place, side)
        self._registry.add(channel)
        self._handles.append(RayActor(self, channel))
        self.call(channel, CONSTRUCT, actor_type, *args, **kwargs)
        channel.made = channel.calls[-1].row
        return self._handles[rank]

    def put(self, value: Any) -> Ref:
        """Store a value in Ray's object store, once."""
        self._check_open()
        return self._calls.put(value)

    def get(self, refs: Any, timeout_s: float | None = None) -> Any:
        """Return the value of a ref, or the values of a sequence; arrays are read-only views of shared memory."""
        self._check_open()
        several = isinstance(refs, Sequence)
        requested: list[Ref] = list(refs) if several else [refs]
        values = self._waiting.values(requested, None if timeout_s is None else time.monotonic() + timeout_s)
        return values if several else values[0]

    def wait(self, refs: Iterable[Ref], count: int = 1, timeout_s: float | None = None) -> tuple[list[Ref], list[Ref]]:
        """Return (done, pending) once ``count`` refs are done or the time is over."""
        self._check_open()
        requested = list(refs)
        ready = self._waiting.until_done(requested, count, None if timeout_s is None else time.monotonic() + timeout_s)
        finished = [ref for ref in requested if ref.object in ready]
        if len(finished) > 1:
            self._calls.take_rows()
            finished.sort(key=lambda ref: ref.issued.end_s)
        return finished, [ref for ref in requested if ref.object not in ready]

    def group(self, actors: Sequence[RayActor]) -> GroupHandle:
        """Make a group of these actors, in rank order."""
        self._check_open()
        self._groups += 1
        channels = [actor._channel for actor in actors]
        sides = [channel.side for channel in channels]
        members = [(channel.key, channel.name) for channel in channels]
        group = GroupHandle(f"{self.key}/{self._groups}", members, self._shared.meeting_of(sides))
        for side in sides:
            if side is not None:
                side.groups.add(group)
        return group

    def kill(self, actor: RayActor) -> None:
        """Kill the actor's process through Ray."""
        self._check_open()
        channel = actor._channel
        if channel.died_s is None:
            self._fault_injectors.kill(channel.heartbeats.process)
            self._ray.kill(channel.handle)
            self._registry.note_death(channel)

    def disturb(self, actor: RayActor, disturbance: Disturbance) -> None:
        """Stop the actor's process, once or repeatedly; return when the disturbance has begun.

        The first disturbance on a node starts a helper actor there, which takes about one second.

        Raises
        ------
        TimeLimitError : the actor was not placed within ``reserve_timeout_s``, or its node does not answer.
        """
        self._check_open()
        channel = actor._channel
        self._registry.check_for_deaths(at_once=True)
        while channel.died_s is None:
            read_heartbeats([channel])
            if channel.heartbeats.process is not None:
                self._fault_injectors.disturb(channel.heartbeats.process, disturbance)
                return
            self._waiting.patience(None)
            time.sleep(_PROCESS_CHECK_INTERVAL_S)
            self._registry.check_for_deaths()

    def silent(self, after_s: float) -> list[RayActor]:
        """Return the handles of the living actors without a heartbeat for ``after_s`` seconds."""
        if not self._end.alive:
            return []
        self._registry.check_for_deaths()
        living = [channel for channel in self._registry.channels if channel.died_s is None]
        read_heartbeats(living)
        before_s = time.monotonic() - after_s - SEEN_WITHIN_S
        unplaced = self._registry.unplaced()
        begun = [channel for channel in living if channel not in unplaced]
        return [self._handles[channel.rank] for channel in begun if channel.heartbeats.heartbeat_s <= before_s]

    def trace(self) -> list[TraceRow]:
        """Return the rows of the calls that ended since the last `trace`."""
        if self._end.alive:
            self._calls.take_all_rows()
        return self._calls.give_rows()

    def lost(self) -> list[RayActor]:
        """Return the handles of the dead actors, in the order in which their deaths became known."""
        if self._end.alive:
            self._registry.check_for_deaths()
        return [self._handles[channel.rank] for channel in self._registry.deaths]

    def close(self) -> None:
        """Kill the actors, release the reservations, and stop Ray if this engine started it.

        Arrays that were fetched stay valid if Ray stops too. If the cluster continues, copy them before this call: its
        object store may reuse their memory.
        """
        super().close()

    def handle(self, rank: int, *_: Any) -> RayActor:
        """Return the driver's handle on an actor, for a pickled handle that an actor returned."""
        return self._handles[rank]

    def place(self, channel: Channel) -> tuple[int, str, str, Any, Any]:
        """Return the data that is pickled with a handle, and enable calls between actors."""
        self._calls.actors_may_call = True
        return channel.rank, channel.key, channel.name, channel.handle, channel.made

    def call(self, channel: Channel, method: str, /, *args: Any, returns: int | None = None, **kwargs: Any) -> Any:
        """Issue a call. Methods of handles call this."""
        self._check_open()
        return self._calls.issue(channel, method, returns, args, kwargs)


def _end(
    session: Session,
    key: str,
    channels: list[Channel],
    reservations: Reservations,
    fault_injectors: FaultInjectors,
    shared: Shared,
) -> None:
    import ray

    try:
        if ray.is_initialized():
            names = {*fault_injectors.close(), *(channel.key for channel in channels)}
            for channel in channels:
                ray.kill(channel.handle)
            reservations.close()
            deadline = time.monotonic() + _LEAVING_S
            while names & living_actors() and time.monotonic() < deadline:
                time.sleep(0.01)
            forget_engine(key)
    finally:
        for channel in channels:
            if channel.side is not None:
                channel.side.closed = True
            channel.calls.clear()
            channel.handle = channel.made = None
            channel._remotes.clear()
        shared.close()
        session.leave()

"""The simulated engine: one process, virtual time, real arithmetic (docs/architecture.md, section 3)."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any, overload

from chimera.core.closing import Closing
from chimera.core.engine import ENGINES, Disturbance, Resources
from chimera.core.errors import ConfigurationError, EngineClosedError
from chimera.core.trace import TraceRow
from chimera.engines.handle import check_returns, handle_of, receive_handles
from chimera.engines.simulated.call import CONSTRUCTOR, ActorHandle, Call, Ref
from chimera.engines.simulated.driver_waits import DriverWaits
from chimera.engines.simulated.events import SimulatedContext
from chimera.engines.simulated.group import SimulatedGroup
from chimera.engines.simulated.health import CLIENT
from chimera.engines.simulated.models.availability import Availability
from chimera.engines.simulated.models.collectives import MODELS
from chimera.engines.simulated.models.compute import Compute
from chimera.engines.simulated.models.devices import Device, Devices
from chimera.engines.simulated.models.network import Connections, Network
from chimera.engines.simulated.node import NO_METHODS, Node
from chimera.engines.simulated.options import options
from chimera.engines.simulated.scheduler import Scheduler
from chimera.engines.stored import Stored
from chimera.engines.threads import limit_threads

_numbers = itertools.count()


@ENGINES.register("simulated")
class Simulated(Closing):
    """An engine in virtual time: one process executes each call at once, and simulates only the clock.

    A call starts when its message and its arguments have crossed the simulated network and the actor is free. The arguments
    of a constructor are not charged to the network. Two runs with the same seed have the same timeline and the same bits.

    Parameters
    ----------
    seed : seed of the speeds of actors and of the stragglers.
    servers_in_groups : whether servers and workers exchange messages in groups, as on engines of processes, instead of in calls
        that the driver makes for each round.
    network, compute, devices, availability : the models of time, or tables with their options.
    """

    nodes_own_data = False
    one_process = True
    virtual_time = True

    def __init__(
        self,
        *,
        seed: int = 0,
        servers_in_groups: bool = False,
        network: Network | Mapping[str, Any] | None = None,
        compute: Compute | Mapping[str, Any] | None = None,
        devices: Devices | Mapping[str, Any] | None = None,
        availability: Availability | Mapping[str, Any] | None = None,
    ) -> None:
        self._seed, self.servers_in_groups = seed, servers_in_groups
        wires = options(Network, network, "engine 'simulated', network")
        self._compute = options(Compute, compute, "engine 'simulated', compute")
        self._devices = options(Devices, devices, "engine 'simulated', devices")
        self._availability = options(Availability, availability, "engine 'simulated', availability")
        bytes_s = wires.bandwidth_bytes_s
        self._typical = Device(self._compute.seconds_per_sample, bytes_s, bytes_s, wires.latency_s)
        self._connections, self._collectives = Connections(wires), MODELS[wires.collectives]
        self._driver = Node("driver", -1, self._connections.port("driver", self._typical))
        self._order, self._nodes, self._names = itertools.count(), list[Node](), set[str]()
        self._handles: list[ActorHandle] = []
        self._departures: list[tuple[float, int]] = []  # clients that will leave for good: there may be many
        self._scheduler = Scheduler(self._driver, self._compute, seed, self._connections.trunks)
        self._driver_waits = DriverWaits(self._scheduler, self._driver)
        self._give_back_threads: Callable[[], None] | None = None
        # Actors with the same bandwidth share one object: what a call declares is charged before another call runs.
        self._actor_context = cache(partial(SimulatedContext, self._scheduler.events))
        self._closed = False
        self.key = f"simulated-{next(_numbers)}"
        receive_handles(self)

    def reserve(self, resources: Sequence[Resources], timeout_s: float | None = None) -> None:
        """Do nothing: this engine has no limit to reserve from."""

    def spawn(
        self,
        actor_type: Callable[..., Any],
        /,
        *args: Any,
        resources: Resources | None = None,  # noqa: ARG002 - virtual machines have all resources
        name: str | None = None,
        **kwargs: Any,
    ) -> ActorHandle:
        """See `Engine.spawn`."""
        self._check_open()
        if self._give_back_threads is None:  # sums must not depend on the number of cores
            self._give_back_threads = limit_threads(1)
        rank = len(self._nodes)
        name = f"actor {rank}" if name is None else name
        device = self._devices.of(self._seed, name, self._typical)
        node = Node(name, rank, self._connections.port(name, device))
        node.target, node.actor_context = actor_type, self._actor_context(node.port.uplink_bytes_s)
        node.factor = self._compute.actor_factor(self._seed, name)
        node.seconds_per_sample = device.seconds_per_sample
        if name not in self._names:
            self._schedule_absences(node)
        if node.presence is not None or device is not self._typical:
            node.health, node.uploads, node.administrative = (
                CLIENT,
                True,
                getattr(actor_type, "administrative", NO_METHODS),
            )
        call = Call(self._driver, node, CONSTRUCTOR, next(self._order), self._scheduler.now_s, args, kwargs)
        self._nodes.append(node)
        self._names.add(name)
        self._scheduler.issue(call)
        self._handles.append(ActorHandle(self, node))
        return self._handles[-1]

    def _schedule_absences(self, node: Node) -> None:
        """Set the times at which a new actor joins, leaves, crashes, and is on."""
        name, given = node.name, self._availability
        node.join_s = given.join.get(name, 0.0)
        node.leave_s = given.leave.get(name, math.inf)
        node.crash_s = given.crash.get(name, math.inf)
        presence = given.presence(self._seed, name)
        if presence is not None:
            node.presence = presence
            if presence.ends_s < node.crash_s:
                node.crash_s, node.death_cause = presence.ends_s, "left for good"
        if name in given.leave or name in given.crash:
            self._scheduler.ending_nodes.add(node)
        elif node.crash_s < math.inf:
            heapq.heappush(self._departures, (node.crash_s, node.rank))

    def put(self, value: Any) -> Ref:
        """See `Engine.put`."""
        self._check_open()
        call = Call(self._driver, self._driver, "put", next(self._order), self._scheduler.now_s)
        call.start_s = call.end_s = call.known_s = call.issued_s
        ref, call.refs = call.refs[0], []
        ref.stored = Stored(value)
        return ref

    def issue(self, node: Node, method: str, /, *args: Any, returns: int | None = None, **kwargs: Any) -> Any:
        """Issue a call of ``method`` on the actor of ``node``. Methods of handles call this."""
        if self._closed:
            self._check_open()
        if returns is not None and returns < 1:
            check_returns(returns, node.name, method)
        scheduler, sender = self._scheduler, self._driver
        issued_s = scheduler.now_s
        if (caller := scheduler.execution.running and scheduler.events.calling()) is not None:
            sender, issued_s = caller.node, caller.node.sends_s(caller.clock_s)
        call = Call(sender, node, method, next(self._order), issued_s, args, kwargs, returns)
        refs = call.refs
        scheduler.issue(call)
        return refs[0] if returns is None else list(refs)

    @overload
    def get(self, refs: Sequence[Any], timeout_s: float | None = None) -> list[Any]: ...
    @overload
    def get(self, refs: Any, timeout_s: float | None = None) -> Any: ...
    def get(self, refs: Any, timeout_s: float | None = None) -> Any:
        """See `Engine.get`. The transfer of each value to the driver is simulated."""
        self._check_open()
        if isinstance(refs, Ref):
            return self._driver_waits.fetch([refs], timeout_s)[0]
        return self._driver_waits.fetch(list(refs), timeout_s)

    def wait(self, refs: Iterable[Any], count: int = 1, timeout_s: float | None = None) -> tuple[list[Ref], list[Ref]]:
        """See `Engine.wait`. The driver learns of the end of a call one network latency later."""
        self._check_open()
        return self._driver_waits.wait(list(refs), count, timeout_s)

    def group(self, actors: Sequence[Any]) -> SimulatedGroup:
        """See `Engine.group`."""
        self._check_open()
        nodes = [actor._node for actor in actors]
        if not nodes or len(set(nodes)) < len(nodes):
            raise ConfigurationError("a group needs at least one actor, and each only once")
        group = SimulatedGroup(self._scheduler, nodes, self._collectives)
        for node in nodes:
            node.groups = (*node.groups, group)
            if node.gone_s <= self._scheduler.now_s:
                group.member_lost(node, node.gone_s)
        return group

    def kill(self, actor: Any) -> None:
        """See `Engine.kill`."""
        self._check_open()
        self._scheduler.events.catch_up()
        node: Node = actor._node
        if node.gone_s > self._scheduler.now_s:
            node.crash_s, node.death_cause = self._scheduler.now_s, "was killed"
            self._scheduler.ending_nodes.add(node)
            self._scheduler.mark_dead(node, node.crash_s)

    def disturb(self, actor: Any, disturbance: Disturbance) -> None:
        """See `Engine.disturb`. A cut without an end acts as a hang. Calls computed ahead of the clock are timed again."""
        self._check_open()
        self._scheduler.events.catch_up()
        node: Node = actor._node
        if node.gone_s > self._scheduler.now_s:
            self._scheduler.disturb(node, disturbance)

    def connected(self, actor: Any) -> bool:
        """Return whether an actor is on now, see `Availability`: others are answered late or not at all."""
        presence = actor._node.presence
        return presence is None or presence.is_on(self._scheduler.now_s)

    def silent(self, after_s: float) -> list[ActorHandle]:
        """See `Engine.silent`. Actors with a long computation are not returned: the engine knows that they compute."""
        now_s = self._scheduler.now_s
        still = [n for n in self._nodes if n.health.silent_since_s(now_s) + after_s <= now_s < n.gone_s]
        return [self._handles[node.rank] for node in still]

    def reduced(self, node: Node) -> tuple[Any, ...]:
        """Return the pickled form of a handle, and enable calls between actors."""
        self._scheduler.events.on = True
        return handle_of, (self.key, node.name, (node.rank,))

    def handle(self, rank: int) -> ActorHandle:
        """Return the handle on an actor for the process that received it in an argument."""
        self._scheduler.events.check_receiver(self._nodes[rank].name)
        return self._handles[rank]

    def now(self) -> float:
        """Return the virtual seconds since the engine started."""
        return self._scheduler.now_s

    def close(self) -> None:
        """See `Engine.close`."""
        self._closed = True
        self._scheduler.close()
        if self._give_back_threads is not None:
            self._give_back_threads()
            self._give_back_threads = None

    def trace(self) -> list[TraceRow]:
        """Return the rows of the calls that ended since the last `trace`, ordered by end time, then by rank."""
        self._scheduler.events.catch_up()
        return self._scheduler.timeline.take_rows(self._scheduler.now_s)

    def lost(self) -> list[ActorHandle]:
        """See `Engine.lost`."""
        self._scheduler.events.catch_up()
        ending_nodes = self._scheduler.ending_nodes
        while self._departures and self._departures[0][0] <= self._scheduler.now_s:
            ending_nodes.add(self._nodes[heapq.heappop(self._departures)[1]])
        gone = [(node.gone_s, node.rank) for node in ending_nodes if node.gone_s <= self._scheduler.now_s]
        return [self._handles[rank] for _, rank in sorted(gone)]

    @property
    def keeps_work(self) -> bool:
        """Whether `state` holds the end of actors' work, so that a checkpoint need not wait for it: only with clients."""
        return self._devices.given or self._availability.varies

    def state(self) -> dict[str, Any]:
        """Return the clock, each actor's number of calls, which determines its next stragglers, and the work of clients."""
        self._scheduler.events.catch_up()
        self._forget_transfers()  # a resumed run does not know them either
        now_s, timeline = self.now(), self._scheduler.timeline
        timeline.settle(now_s)
        return {
            "now_s": now_s,
            "calls": {node.name: node.calls for node in self._nodes},
            "busy_s": {node.name: node.free_s for node in self._nodes if node.uploads and node.free_s > now_s},
            "in_flight": timeline.in_flight(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Set the clock and the numbers of calls. All calls issued before have ended by the restored time.

        The state of a real-time engine is empty and changes nothing.
        """
        self._check_open()
        if not state:
            return
        self._scheduler.now_s = state["now_s"]
        busy_s = state.get("busy_s", {})  # older checkpoints have none
        for node in (self._driver, *self._nodes):
            node.calls = state["calls"].get(node.name, node.calls)
            node.free_s = busy_s.get(node.name, min(node.free_s, state["now_s"]))
        self._scheduler.timeline.announce(state.get("in_flight", ()))
        self._forget_transfers()

    def _forget_transfers(self) -> None:
        for node in (self._driver, *self._nodes):
            node.port.uplink.forget(math.inf)
            node.port.downlink.forget(math.inf)
        for link in self._connections.trunks:
            link.forget(math.inf)

    def _check_open(self) -> None:
        if self._closed:
            raise EngineClosedError("this engine is closed")

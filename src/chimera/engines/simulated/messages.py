"""Messages between the members of a group in virtual time, and the calls that wait for them.

Messages need the order of virtual time (`Events`), because a member may take the first one that arrives. The first message of
an engine enables it. A message leaves at an event of its own, so that transfers queue on links in the order of their times.
"""

from __future__ import annotations

import heapq
import itertools
import math
from bisect import insort
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from chimera.core.call import nbytes
from chimera.core.errors import ActorLost, RunError
from chimera.core.message import Encoded
from chimera.engines.collectives import check_count, check_ranks
from chimera.engines.simulated.call import Call
from chimera.engines.simulated.delivery import carried_s
from chimera.engines.simulated.node import Node
from chimera.engines.stored import Stored
from chimera.engines.suspendable_thread import Abandoned

if TYPE_CHECKING:
    from chimera.engines.simulated.scheduler import Scheduler

_MANY = 4096  # times of transfers that a link keeps, within one call of many messages

_arrival = attrgetter("arrives_s", "order")


class Message:
    """A value in flight.

    Attributes
    ----------
    sender, receiver : nodes of the members; ``source`` and ``target`` are their ranks.
    issued_s, arrives_s : when it leaves and arrives; the arrival is infinite until it has left.
    """

    __slots__ = ("arrives_s", "group", "issued_s", "nbytes", "order", "receiver", "sender", "source", "target", "value")

    def __init__(self, group: GroupMessages, source: int, target: int, issued_s: float, value: Any) -> None:
        self.group, self.source, self.target = group, source, target
        self.sender, self.receiver = group.nodes[source], group.nodes[target]
        self.issued_s, self.arrives_s, self.order = issued_s, math.inf, 0
        self.value = read_only(value)
        self.nbytes = 0 if source == target else nbytes(value)


class Mail:
    """All messages of an engine that have not left, and the calls that wait for messages.

    Attributes
    ----------
    waits : the messages that each waiting call awaits.
    """

    def __init__(self) -> None:
        self.waits: dict[Call, Awaited] = {}
        self._leaving: list[tuple[float, int, Message]] = []
        self._orders = itertools.count()

    def post(self, message: Message) -> None:
        """Send a message at its time."""
        message.order = next(self._orders)
        heapq.heappush(self._leaving, (message.issued_s, message.order, message))

    def next_s(self) -> float:
        """Return when the next message leaves; infinite if there is none."""
        return self._leaving[0][0] if self._leaving else math.inf

    def transfer(self) -> Node:
        """Simulate the transfer of the next message; return its receiver."""
        message = heapq.heappop(self._leaving)[2]
        sender, receiver = message.sender, message.receiver
        message.arrives_s = message.issued_s
        if sender is not receiver:
            message.arrives_s = carried_s(sender, receiver, message.nbytes, message.issued_s)
            between = (hop.link for hop in sender.port.path_to(receiver.port).hops)
            for link in (sender.port.uplink, *between, receiver.port.downlink):
                if len(link.times_s) > _MANY:
                    link.forget(message.issued_s)
        message.group.sent(message)
        return receiver

    def withdraw(self, node: Node) -> None:
        """Drop the messages of a dead actor that it would have sent after its death."""
        self._keep(
            message for message in self._messages() if message.sender is not node or message.issued_s <= node.crash_s
        )

    def delay(self, node: Node, delay: Callable[[Message], None]) -> None:
        """Change the times at which the messages of ``node`` leave."""
        for message in self._messages():
            if message.sender is node:
                delay(message)
        self._keep(self._messages())

    def _messages(self) -> list[Message]:
        return [message for _, _, message in self._leaving]

    def _keep(self, messages: Any) -> None:
        self._leaving = [(message.issued_s, message.order, message) for message in messages]
        heapq.heapify(self._leaving)


class Awaited:
    """The messages for which a call of `receive` waits.

    Attributes
    ----------
    arrivals : the next message of each awaited member that has sent one, in the order of arrival.
    """

    __slots__ = ("_count", "_silent", "arrivals", "group")

    def __init__(self, group: GroupMessages, members: Sequence[int], count: int) -> None:
        self.group, self._silent, self._count = group, set(members), count
        self.arrivals: list[Message] = []

    def take(self, message: Message) -> None:
        """Record the next message of a member, if the call waits for this member."""
        if message.source in self._silent:
            self._silent.remove(message.source)
            insort(self.arrivals, message, key=_arrival)

    @property
    def is_sent(self) -> bool:
        """Whether enough messages have left."""
        return len(self.arrivals) >= self._count

    def known_s(self) -> float:
        """Return when the call can continue: enough messages have arrived, or a death ends the wait."""
        return self.arrivals[self._count - 1].arrives_s if self.is_sent else self.group.loss_s()

    def missing(self) -> list[Node]:
        """Return the members that have not sent."""
        return [self.group.nodes[rank] for rank in sorted(self._silent)]


class GroupMessages:
    """The messages of one group; see `Group.send` and `Group.receive`.

    Parameters
    ----------
    nodes : the members, in rank order.
    latency_s : latency after which the others learn of the death of a member.
    """

    def __init__(self, scheduler: Scheduler, nodes: Sequence[Node], latency_s: float) -> None:
        self._scheduler, self.nodes = scheduler, tuple(nodes)
        self._ranks = {node: rank for rank, node in enumerate(nodes)}
        self._latency_s = latency_s
        self._boxes: defaultdict[tuple[int, int], deque[Message]] = defaultdict(deque)
        self._awaited: dict[int, Awaited] = {}
        self._unanswered: set[tuple[int, int]] = set()
        self._ending_nodes = [node for node in nodes if min(node.crash_s, node.leave_s) < math.inf]

    def send(self, values: Mapping[int, Any]) -> None:
        """Send the values; the sender does not wait for the transfers."""
        call, rank = self._running("send")
        check_ranks(list(values), len(self.nodes))
        if twice := [other for other in values if (rank, other) in self._unanswered]:
            raise RunError(
                f"{call.node.name} sends a second value to {self.nodes[twice[0]].name}: it must receive one in between"
            )
        issued_s, sizes = call.node.sends_s(call.clock_s), dict[int, int]()
        for other, value in values.items():
            message = Message(self, rank, other, issued_s, value)
            sizes[id(value)] = max(message.nbytes, sizes.get(id(value), 0))
            self._scheduler.events.mail.post(message)
            self._unanswered.add((rank, other))
        call.bytes_out += sum(sizes.values())  # a value for several receivers counts once, as the result of a call does

    def receive(self, members: Sequence[int], count: int | None = None) -> dict[int, Any]:
        """Suspend the running call until the messages have arrived, or a death ends the wait."""
        call, rank = self._running("receive")
        check_ranks(members, len(self.nodes))
        count = check_count(members, count)
        began_s = call.clock_s
        awaited = self._awaited[rank] = Awaited(self, members, count)
        for member in members:
            if box := self._boxes[member, rank]:
                awaited.take(box[0])
        try:
            self._scheduler.events.await_messages(call, awaited)
        finally:
            del self._awaited[rank]
        call.clock_s = call.node.begins_s(max(call.clock_s, awaited.known_s()))
        if not awaited.is_sent:
            call.wait_s += call.clock_s - began_s
            raise self._lost(call)
        call.has_received = True
        taken = awaited.arrivals[:count]
        for message in taken:
            self._boxes[message.source, rank].popleft()
            self._unanswered.discard((rank, message.source))
            call.bytes_in += message.nbytes
        transfer_s = max(0.0, taken[-1].arrives_s - max(began_s, taken[-1].issued_s))
        call.transfer_s += transfer_s
        call.wait_s += call.clock_s - began_s - transfer_s
        found = {message.source: message.value for message in taken}
        return {member: found[member] for member in members} if count == len(members) else found

    def sent(self, message: Message) -> None:
        """Record that a message has left, and when it will arrive."""
        self._boxes[message.source, message.target].append(message)
        if (awaited := self._awaited.get(message.target)) is not None:
            awaited.take(message)

    def member_lost(self, node: Node) -> None:
        """Record the death of a member."""
        if node not in self._ending_nodes:
            self._ending_nodes.append(node)
        self._scheduler.events.reschedule_receivers()

    def loss_s(self) -> float:
        """Return when the others learn of the first death of a member."""
        return min(map(_gone_s, self._ending_nodes), default=math.inf) + self._latency_s

    def _lost(self, call: Call) -> ActorLost:
        node = min(self._ending_nodes, key=_gone_s)
        return ActorLost(
            f"{node.name} was lost at {_gone_s(node):g} s, and {call.node.name} waits for messages of its group"
        )

    def _running(self, verb: str) -> tuple[Call, int]:
        """Return the running call, with its clock set, and the rank of its actor."""
        call = self._scheduler.execution.charge()
        if call is None or call.node not in self._ranks:
            raise RunError(f"{verb} was called outside of a call on a member of the group")
        if call.node.crash_s <= call.clock_s:
            raise Abandoned
        self._scheduler.events.on = True
        return call, self._ranks[call.node]


def _gone_s(node: Node) -> float:
    """Return when a member is lost; a member that leaves first ends its call."""
    return node.crash_s if node.suspended is not None else node.gone_s


def read_only(value: Any) -> Any:
    """Return ``value`` for its receiver: arrays as read-only views, without a copy, and anything else as a value of its own."""
    kind = type(value)
    if kind is np.ndarray and not value.dtype.hasobject:
        view = value.view()
        view.flags.writeable = False
        return view
    if kind is Encoded:
        message = Encoded(value.codec, value.size, tuple(map(read_only, value.arrays)), dict(value.meta))
        message.plain = value.plain
        return message
    if kind is tuple or kind is list:
        return kind(map(read_only, value))
    if kind is dict:
        return {key: read_only(part) for key, part in value.items()}
    return Stored(value).open()

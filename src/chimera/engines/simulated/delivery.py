"""Delivery of messages and values to an actor through the network model."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from operator import attrgetter

from chimera.engines.simulated.call import Call, Ref
from chimera.engines.simulated.node import Node
from chimera.engines.simulated.presence import Presence

_end_s = attrgetter("call.end_s")


def arrival_s(call: Call) -> float:
    """Send the message and the arguments of ``call``; return when it can start."""
    node = call.node
    ready_s = call.issued_s if call.issued_s > node.join_s else node.join_s
    if node.uploads:
        ready_s, message_s, free_s, presence = _send_to_client(call, ready_s)
        if ready_s == inf:
            return inf
    else:
        free_s, presence = node.free_s, None
        message_s = call.sender.port.send(node.port, call.given_bytes, ready_s)
    arrived_s, left_s, size = ready_s, ready_s, 0
    if call.given:
        arrived_s, left_s, size = deliver(call.given, node, ready_s, presence)
    call.transit_s = arrived_s - left_s
    if message_s >= arrived_s:
        arrived_s, left_s = message_s, ready_s
    call.bytes_in = call.given_bytes + size
    idle_s = arrived_s - (left_s if left_s > free_s else free_s)
    call.transfer_s = idle_s if idle_s > 0 else 0.0
    start_s = arrived_s if arrived_s > free_s else free_s
    if node.health.sound:
        return start_s
    return node.health.begins_s(start_s if presence is None else presence.begins_s(start_s))


def _send_to_client(call: Call, ready_s: float) -> tuple[float, float, float, Presence | None]:
    """Send the message of a call to a client.

    Returns the time at which the message and the arguments leave, the time at which the message arrives, the time from which
    the client can work for the call, and the presence on which the call depends.
    """
    node, presence = call.node, call.presence
    free_s = 0.0 if call.method in node.administrative else node.free_s  # the client answers these also while it works
    if presence is not None and (ready_s := presence.begins_s(ready_s)) == inf:
        return inf, inf, free_s, presence
    message_s = call.sender.port.send(node.port, call.given_bytes, ready_s)
    return ready_s, message_s if presence is None else presence.arrives_s(ready_s, message_s), free_s, presence


def deliver(
    refs: Sequence[Ref], node: Node, ready_s: float, presence: Presence | None = None
) -> tuple[float, float, int]:
    """Send the values of ``refs`` to ``node``, not before ``ready_s``; ``presence`` is the receiver's, if it matters.

    Returns the arrival time of the last value, the time at which that value was sent, and the number of bytes sent.
    """
    arrived_s = left_s = ready_s
    size = 0
    for ref in sorted(refs, key=_end_s) if len(refs) > 1 else refs:
        sender, of_sender = ref.call.node, None
        leaves_s = ref.call.end_s if ref.call.end_s > ready_s else ready_s
        if not sender.health.sound:
            of_sender = ref.call.presence
            leaves_s = _leaves_s(ref.call, leaves_s)
        if sender is node:
            arrives_s = leaves_s
        elif node in ref.arrivals:
            arrives_s = max(ref.arrivals[node], ref.call.end_s)
        else:
            assert ref.stored is not None
            weighs = ref.stored.nbytes
            arrives_s = ref.arrivals[node] = sender.port.send(node.port, weighs, leaves_s)
            if of_sender is not None or presence is not None:
                arrives_s = ref.arrivals[node] = _prolonged_s(leaves_s, arrives_s, of_sender, presence)
            size += weighs
        if arrives_s > arrived_s:
            arrived_s, left_s = arrives_s, leaves_s
    return arrived_s, left_s, size


def _leaves_s(call: Call, taken_s: float) -> float:
    """Return when a result leaves a disturbed actor or a client. A client sends it at the end of the call."""
    node, presence = call.node, call.presence
    leaves_s = node.health.sends_s(call.end_s if node.uploads else taken_s)
    return leaves_s if presence is None else presence.leaves_s(leaves_s)


def carried_s(sender: Node, receiver: Node, size: int, ready_s: float) -> float:
    """Send bytes from node to node; return their arrival. A transfer is interrupted while one of its ends is off."""
    arrives_s = sender.port.send(receiver.port, size, ready_s)
    return _prolonged_s(ready_s, arrives_s, sender.presence, receiver.presence)


def _prolonged_s(leaves_s: float, arrives_s: float, *presences: Presence | None) -> float:
    """Return the arrival of a transfer that is interrupted while one of its ends is off."""
    for presence in presences:
        if presence is not None:
            arrives_s = presence.arrives_s(leaves_s, arrives_s)
    return arrives_s

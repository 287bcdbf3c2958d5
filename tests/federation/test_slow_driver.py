"""A driver or node that does not read delays no other one, and gets the frames that it has missed once it reads."""

from __future__ import annotations

import contextlib
import math
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("websockets")

from chimera.engines.federation import FederationEngine
from chimera.engines.federation.wire import port
from chimera.engines.http.channels.hosted_channel import HostedChannel
from chimera.federation.hub.member import ConnectedMember
from conformance.actors import Counter, Holder
from federation.federation_kit import LIMIT_S, Federation, federation, until

SIZE, COUNT = 800_000, 6  # numbers of 4 bytes in an answer, and answers: many times what may wait


class Slow:
    """A driver or node whose connection reads nothing until `read`."""

    def __init__(self, loop: Any, connected: Any, at_hub: ConnectedMember) -> None:
        self._loop, self.at_hub = loop, at_hub
        self._transport = connected.connection.transport
        for side, option in ((self._transport, socket.SO_RCVBUF), (self.at_hub.port._transport, socket.SO_SNDBUF)):
            side.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, option, 1 << 16)
        self._loop.call_soon_threadsafe(self._transport.pause_reading)

    @classmethod
    def driver(cls, place: Federation, engine: FederationEngine) -> Slow:
        return cls(engine._tunnel._loop, engine._tunnel._calls.port, place.hub._relay.drivers[engine.key])

    @classmethod
    def node(cls, place: Federation, name: str) -> Slow:
        service = place.services[name]
        return cls(service._loop, service._calls._port, place.hub._relay.nodes[name])

    def read(self) -> None:
        self._loop.call_soon_threadsafe(self._transport.resume_reading)


@pytest.mark.parametrize("when", ["before", "after"])
def test_other_drivers_of_a_node_do_not_wait_for_one_that_does_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The other driver connects before the answers of the first one wait, or after that."""
    monkeypatch.setattr(port, "MAX_QUEUED_BYTES", 1 << 20)
    with federation(tmp_path, "node-0") as place, contextlib.ExitStack() as stack:
        alice = stack.enter_context(place.engine("alice", nodes=["node-0"]))
        arrays = [np.full(SIZE, number, np.float32) for number in range(COUNT)]
        holders = [alice.spawn(Holder, array) for array in arrays]
        alice.get([holder.keep(0) for holder in holders], LIMIT_S)
        if when == "before":
            bob = stack.enter_context(place.engine("bob", nodes=["node-0"]))
        slow, node = Slow.driver(place, alice), place.hub._relay.nodes["node-0"]
        values = [holder.value() for holder in holders]
        until(lambda: slow.at_hub.port.full)
        if when == "after":
            bob = stack.enter_context(place.engine("bob", nodes=["node-0"]))
        counter = bob.spawn(Counter, 40)
        assert isinstance(counter._channel, HostedChannel)  # the node has answered which classes it hosts
        assert [bob.get(counter.add(1), LIMIT_S) for _ in range(3)] == [41, 42, 43]
        assert place.hub._relay.nodes["node-0"] is node  # its connection was not broken
        assert slow.at_hub.port.full
        until(lambda: "node-0" in slow.at_hub.missed)
        slow.read()
        for array, value in zip(arrays, alice.get(values, LIMIT_S), strict=True):
            np.testing.assert_array_equal(value, array)
        assert place.hub._relay.drivers[alice.key] is slow.at_hub
        assert "node-0" not in slow.at_hub.missed


def test_an_only_driver_that_neither_reads_nor_sends_is_ended_and_not_its_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the hub does not read from the node, whose frames wait for the driver, it cannot know that the node is alive."""
    monkeypatch.setattr(port, "MAX_QUEUED_BYTES", 1 << 20)
    with federation(tmp_path, "node-0") as place, place.engine(nodes=["node-0"]) as alice:
        arrays = [np.full(SIZE, number, np.float32) for number in range(COUNT)]
        holders = [alice.spawn(Holder, array) for array in arrays]
        alice.get([holder.keep(0) for holder in holders], LIMIT_S)
        slow, relay = Slow.driver(place, alice), place.hub._relay
        node = relay.nodes["node-0"]
        values = [holder.value() for holder in holders]
        until(lambda: node.held)

        def let_time_pass() -> None:
            for member in relay.members():
                member.last_received_s = -math.inf
            relay.close_idle()

        place.running_hub._loop.call_soon_threadsafe(let_time_pass)
        until(lambda: relay.drivers.get(alice.key) is not slow.at_hub)
        slow.read()  # its connection has ended: it connects again
        for array, value in zip(arrays, alice.get(values, LIMIT_S), strict=True):
            np.testing.assert_array_equal(value, array)
        assert relay.nodes["node-0"] is node


@pytest.mark.parametrize("when", ["before", "after"])
def test_other_nodes_of_a_driver_do_not_wait_for_one_that_does_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The other node connects before the requests to the first one wait, or after that."""
    monkeypatch.setattr(port, "MAX_QUEUED_BYTES", 1 << 20)
    with federation(tmp_path, "node-0") as place, contextlib.ExitStack() as stack:
        alice = stack.enter_context(place.engine("alice", nodes=["node-0"]))
        holders = [alice.spawn(Holder) for _ in range(COUNT)]
        alice.get([holder.keep(0) for holder in holders], LIMIT_S)
        if when == "before":
            place.node("node-1")
        slow, relay = Slow.node(place, "node-0"), place.hub._relay
        driver = relay.drivers[alice.key]
        kept = [holder.keep(np.full(SIZE, number, np.float32)) for number, holder in enumerate(holders)]
        until(lambda: slow.at_hub.port.full)
        if when == "after":
            until(lambda: driver.held)  # it waits for the only node
            place.node("node-1")
        until(lambda: "node-0" in driver.missed)
        alice._nodes.append(alice._node("node-1"))
        other = alice.spawn(Counter, 40, name="other")
        assert [alice.get(other.add(1), LIMIT_S) for _ in range(3)] == [41, 42, 43]
        assert slow.at_hub.port.full
        slow.read()
        alice.get(kept, LIMIT_S)
        assert alice.get([holder.kept_sum() for holder in holders], LIMIT_S) == [SIZE * n for n in range(COUNT)]
        assert relay.nodes["node-0"] is slow.at_hub  # its connection was not broken
        assert relay.drivers[alice.key] is driver
        assert "node-0" not in driver.missed

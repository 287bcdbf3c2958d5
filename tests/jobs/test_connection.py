"""Connections between the daemon and its workers: whole lines or none, and one limit for sending only."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from chimera.jobs.cluster.connection import Connection, Hello, connection_to_daemon, connection_to_worker


@pytest.fixture
def pair() -> Any:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield connection_to_worker(ours), connection_to_daemon(theirs)


def send_many(own: Connection[Any]) -> None:
    for _ in range(10):
        own.send(LARGE)


def received_until_the_end(peer: Connection[Any]) -> Iterator[Any]:
    with contextlib.suppress(EOFError):
        while True:
            yield from peer.receive()


LARGE = Hello("w" * 300_000, "host", 1)


def test_a_peer_that_does_not_read_ends_the_connection_and_gets_no_part_of_a_message(pair: Any) -> None:
    own, peer = pair
    own.send(Hello("small", "host", 1))
    with pytest.raises(BlockingIOError):
        send_many(own)
    with pytest.raises(EOFError):
        list(own.receive())
    peer._decoder = own._decoder  # both ends decode the messages of workers here
    found = list(received_until_the_end(peer))
    assert found[0].name == "small"
    assert all(message == LARGE for message in found[1:])


def test_the_limit_of_a_sender_does_not_end_the_wait_of_a_receiver(pair: Any) -> None:
    own, peer = pair
    received: list[Any] = []

    def receive() -> None:
        received.extend(own.receive())

    waiting = threading.Thread(target=receive)
    waiting.start()
    drained = threading.Thread(target=_drain, args=(peer, 400))
    drained.start()
    for _ in range(400):
        own.send(Hello("to the worker", "host", 1))
    drained.join(10)
    waiting.join(1.5)  # longer than the limit of a sender
    assert waiting.is_alive()
    peer.send(Hello("worker 0", "host", 1))
    waiting.join(10)
    assert [message.name for message in received] == ["worker 0"]


def _drain(connection: Connection[Any], count: int) -> None:
    lines = 0
    while lines < count:
        lines += connection._socket.recv(1 << 16).count(b"\n")

"""Tests of unauthenticated connections to a voter: they have a deadline and a short queue, and block no other client."""

from __future__ import annotations

import contextlib
import secrets
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera.inference.journal.raft import connection as raft_connection
from chimera.inference.journal.raft import transport as raft_transport
from chimera.inference.journal.raft.connection import Connection, parse_address
from chimera.inference.journal.records import Cancelled
from inference.journal_kit import LONG_S, acquired
from inference.voters import Voters, following


@contextlib.contextmanager
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection on this machine."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    with near, far:
        yield near, far


def test_a_handshake_has_one_deadline_despite_slow_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raft_connection, "HANDSHAKE_S", 0.3)
    over = threading.Event()

    def dribble() -> None:
        while not over.wait(0.05):
            with contextlib.suppress(OSError):
                far.send(b"x")

    with ends() as (near, far):
        slow = threading.Thread(target=dribble)
        slow.start()
        try:
            with pytest.raises(TimeoutError):
                Connection(near, b"token", client=False)
        finally:
            over.set()
            slow.join()


def test_the_handshake_deadline_includes_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raft_connection, "HANDSHAKE_S", 0.3)
    with ends() as (near, far):
        client: list[Connection] = []
        other = threading.Thread(target=lambda: client.append(Connection(far, b"token", client=True)))
        other.start()
        connection = Connection(near, b"token", client=False)
        other.join()
        with pytest.raises(TimeoutError):
            connection.receive(300)
        for one in (connection, *client):
            one.close()


def test_a_proof_cannot_be_reflected() -> None:
    """An attacker that echoes messages cannot authenticate: the proofs of both ends differ."""
    with ends() as (near, far):

        def echo() -> None:
            with contextlib.suppress(OSError):
                while data := far.recv(4096):
                    far.sendall(data)

        reflecting = threading.Thread(target=echo)
        reflecting.start()
        with pytest.raises(ConnectionError, match="does not have the cluster's token"):
            Connection(near, b"token", client=False)
        near.shutdown(socket.SHUT_RDWR)
        reflecting.join()


@pytest.mark.parametrize("size", [301, raft_connection.MAX_BYTES + 1, (1 << 32) - 1])
def test_an_oversized_message_closes_the_connection_before_reading(size: int) -> None:
    with ends() as (near, far):
        client: list[Connection] = []
        other = threading.Thread(target=lambda: client.append(Connection(far, b"token", client=True)))
        other.start()
        connection = Connection(near, b"token", client=False)
        other.join()
        far.sendall(struct.pack("!I", size))
        with pytest.raises(ConnectionError, match="too large"):
            connection.receive(300)
        for one in (connection, *client):
            one.close()


@given(st.binary(max_size=200))
def test_bytes_after_the_handshake_are_decoded_or_raise_a_decoding_error(body: bytes) -> None:
    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
        raft_transport._DECODER.decode(body)


@pytest.fixture
def port() -> Iterator[tuple[str, int]]:
    """Where a voter listens; it is not part of a cluster, so that it only answers."""
    alone = SimpleNamespace(_poller=SimpleNamespace(subscribe=lambda *_: None), addOnTickCallback=lambda _: None)
    listener = raft_connection.listen("127.0.0.1:0")
    transport = raft_transport.RaftTransport(alone, None, (), listener=listener, token="token")
    try:
        yield listener.getsockname()
    finally:
        transport.destroy()


def _writers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "chimera-raft-send"]


@pytest.mark.parametrize("name", [b"\xff", b"x" * 301], ids=["no UTF-8", "too long"])
def test_a_connection_with_a_bad_name_leaves_no_thread(name: bytes, port: tuple[str, int]) -> None:
    before = set(_writers())
    connection = Connection(socket.create_connection(port), b"token", client=True)
    connection.send(name)
    with pytest.raises(ConnectionError, match=r"has ended|reset"):
        connection.receive(300)
    connection.close()
    for writer in set(_writers()) - before:
        writer.join(5)
    assert not set(_writers()) - before


class _SlowConnections:
    """Slow connections to some addresses: each sends a byte at intervals, and a closed one is opened again."""

    def __init__(self, addresses: list[str], count: int) -> None:
        self._places = [parse_address(address) for address in addresses]
        self._open = [self._opened(place) for place in self._places for _ in range(count)]
        self._over = threading.Event()
        self.ended = 0
        self._thread = threading.Thread(target=self._keep)
        self._thread.start()

    def _opened(self, place: tuple[str, int]) -> tuple[tuple[str, int], socket.socket]:
        plain = socket.create_connection(place, 5)
        plain.setblocking(False)
        return place, plain

    def _keep(self) -> None:
        while not self._over.wait(0.02):
            for number, (place, plain) in enumerate(self._open):
                try:
                    plain.send(secrets.token_bytes(1))
                except OSError:
                    self.ended += 1
                    plain.close()
                    with contextlib.suppress(OSError):
                        self._open[number] = self._opened(place)

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        for _, plain in self._open:
            plain.close()


@pytest.mark.long
def test_slow_unauthenticated_connections_do_not_block_voters_and_followers(tmp_path: Path) -> None:
    voters = Voters(tmp_path / "cluster")
    crowd = None
    try:
        crowd = _SlowConnections(voters.addresses, 100)
        journal = following(tmp_path / "cluster")
        try:
            epoch = acquired(journal, "c0", LONG_S).epoch
            journal.append(epoch, [Cancelled("1", "", 0.0)])
            voters.kill(0)  # one that comes back must find the others
            voters.start(0)
            voters.await_start(0)
            journal.append(epoch, [Cancelled("2", "", 0.0)])
            assert crowd.ended > 0
            for number in range(3):
                assert voters.process(number).poll() is None
                assert len([*Path(f"/proc/{voters.process(number).pid}/fd").iterdir()]) < 200
        finally:
            journal.close()
    finally:
        if crowd is not None:
            crowd.close()
        voters.end()

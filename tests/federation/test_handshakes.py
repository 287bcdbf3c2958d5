"""Strangers that open connections and send nothing, or end the TLS handshake and send no request."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from pathlib import Path

import pytest

pytest.importorskip("websockets")

from chimera.federation.hub import listeners, server
from chimera.web.handshakes import Handshakes
from conformance.actors import Counter
from federation.federation_kit import LIMIT_S, Federation, federation


def connected(place: Federation, origin: str) -> socket.socket:
    """Return a connection to the hub from an address of this machine."""
    return socket.create_connection(("127.0.0.1", place._port), LIMIT_S, (origin, 0))


def is_closed(stranger: socket.socket, within_s: float = LIMIT_S) -> bool:
    stranger.settimeout(within_s)
    try:
        return stranger.recv(1 << 16) == b""
    except ConnectionError:
        return True
    except TimeoutError:
        return False


def test_unfinished_handshakes_are_bounded_by_address_and_keep_no_member_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HELLO_S", 10 * LIMIT_S)  # no deadline ends a connection
    monkeypatch.setattr(listeners, "MAX_HANDSHAKES_OF_ADDRESS", 4)
    monkeypatch.setattr(listeners, "MAX_HANDSHAKES", 16)
    with federation(tmp_path) as place, contextlib.ExitStack() as stack:
        first = stack.enter_context(connected(place, "127.0.0.2"))
        many = [stack.enter_context(connected(place, "127.0.0.3")) for _ in range(7)]
        assert [is_closed(each) for each in many[:3]] == [True] * 3
        place.node("node-0")  # from 127.0.0.1
        with place.engine(nodes=["node-0"]) as engine:
            assert engine.get(engine.spawn(Counter, 40).add(2), LIMIT_S) == 42
        assert not any(is_closed(each, 0.01) for each in [first, *many[3:]])
        for number in range(4, 8):  # as many as all may be
            for _ in range(4):
                stack.enter_context(connected(place, f"127.0.0.{number}"))
        assert is_closed(first)
        place.node("node-1")


def test_a_connection_without_a_request_counts_also_after_its_tls_handshake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HELLO_S", 10 * LIMIT_S)  # no deadline ends a connection
    monkeypatch.setattr(listeners, "MAX_HANDSHAKES_OF_ADDRESS", 4)
    trust = ssl.create_default_context()
    trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    with federation(tmp_path) as place, contextlib.ExitStack() as stack:
        secure = [stack.enter_context(trust.wrap_socket(connected(place, "127.0.0.2"))) for _ in range(5)]
        assert is_closed(secure[0])
        assert not any(is_closed(each, 0.01) for each in secure[1:])


def test_one_deadline_ends_connections_by_the_time_of_their_acceptance() -> None:
    handshakes = Handshakes(8)
    with socket.create_server(("127.0.0.1", 0)) as server, contextlib.ExitStack() as stack:
        clients, accepted = [], []
        for _ in range(3):
            clients.append(stack.enter_context(socket.create_connection(server.getsockname(), LIMIT_S)))
            accepted.append(server.accept())
            stack.enter_context(accepted[-1][0])
        handshakes.begin(*accepted[0])
        handshakes.begin(*accepted[1])
        between_s = time.monotonic()
        handshakes.begin(*accepted[2])
        handshakes.end(accepted[1][0].fileno())
        handshakes.break_off_older(between_s)
        assert [is_closed(each, 0.01) for each in clients] == [True, False, False]


def test_addresses_of_one_network_of_ipv6_are_one_client() -> None:
    handshakes = Handshakes(8, 1)
    with contextlib.ExitStack() as stack:
        pairs = [socket.socketpair() for _ in range(3)]
        for side in (side for pair in pairs for side in pair):
            stack.enter_context(side)
        own = [socket.socket(socket.AF_INET6, fileno=pair[0].detach()) for pair in pairs]
        for each, host in zip(own, ["2001:db8::1", "2001:db8:0:1::1", "2001:db8::ffff:2"], strict=True):
            handshakes.begin(stack.enter_context(each), (host, 5, 0, 0))
        assert [is_closed(pair[1], 0.01) for pair in pairs] == [True, False, False]

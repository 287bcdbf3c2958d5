"""Connections to the hub: how soon a break is noticed, and a new one is open."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("websockets")

from websockets.sync.client import connect

from chimera.engines.federation.credentials import Credentials
from chimera.engines.federation.wire.dialing import Dialler
from chimera.engines.federation.wire.frames import GREETING, ConnectedNodes, Hello, Refused, greeting, unpack
from chimera.engines.federation.wire.proxy import proxy_for
from conformance.actors import Counter
from federation.federation_kit import LIMIT_S, Federation, Running, federation
from federation.test_exactly_once import at

HELLO = Hello(1, "boot", "0")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Federation]:
    with federation(tmp_path) as made:
        yield made


def test_a_lost_first_packet_does_not_delay_the_next_try(place: Federation) -> None:
    """The server loses the first packets, since its queue is full. TCP repeats each of them after a second."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, contextlib.ExitStack() as stack:
        url = f"https://127.0.0.1:{server.getsockname()[1]}"
        dialler = Dialler(at(place.join("node", "node-0"), url), HELLO)
        stack.enter_context(socket.create_connection(server.getsockname()))
        begun, freed_s = 0, 0.0

        def gap_s() -> float:
            nonlocal begun, freed_s
            begun += 1
            if begun == 3:
                stack.enter_context(server.accept()[0])
                freed_s = time.monotonic()
            return 0.05

        stack.enter_context(asyncio.run(dialler.reach(gap_s, lambda _: None)))
        assert begun >= 3
        assert time.monotonic() - freed_s < 0.5


class Forgetful:
    """A relay that forgets its connections, as a NAT router does: the hub sees them end, and a node does when it sends."""

    def __init__(self, url: str) -> None:
        self._to = int(url.rpartition(":")[2])
        self._hubs: list[Any] = []
        self._listening = threading.Event()
        self._running = Running(self._serve)
        assert self._listening.wait(LIMIT_S)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self.url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._listening.set()
        async with server:
            await server.serve_forever()

    async def _connection(self, reader: Any, writer: Any) -> None:
        from_hub, to_hub = await asyncio.open_connection("127.0.0.1", self._to)
        self._hubs.append(to_hub)
        back = asyncio.ensure_future(self._copy(from_hub, writer))
        with contextlib.suppress(asyncio.CancelledError):
            await self._copy(reader, to_hub)
        back.cancel()
        writer.transport.abort()
        to_hub.transport.abort()

    @staticmethod
    async def _copy(reader: Any, writer: Any) -> None:
        with contextlib.suppress(OSError):
            while (data := await reader.read(1 << 16)) and not writer.is_closing():
                writer.write(data)

    def forget(self) -> None:
        for hub in self._hubs:
            self._loop.call_soon_threadsafe(hub.transport.abort)

    def stop(self) -> None:
        self._running.stop()


def test_a_node_without_calls_notices_soon_that_its_connection_was_forgotten(place: Federation) -> None:
    relay = Forgetful(place.url)
    try:
        place.node(at(place.join("node", "node-0"), relay.url))
        with place.engine(nodes=["node-0"]) as engine:
            counter = engine.spawn(Counter, 1)
            assert engine.get(counter.add(1), LIMIT_S) == 2
            relay.forget()
            began_s = time.monotonic()
            assert engine.get(counter.add(1), LIMIT_S) == 3
            assert time.monotonic() - began_s < 3.0  # without calls for long, a heartbeat comes each 10 s
    finally:
        relay.stop()


def greet(place: Federation, member: Credentials, value: str | None, *frames: Any) -> Any:
    headers = {} if value is None else {GREETING: value}
    with connect(
        f"{place.url.replace('https', 'wss')}/node", ssl=member.tls(), additional_headers=headers, compression=None
    ) as connection:
        for frame in frames:
            connection.send(frame)
        return unpack(connection.recv(LIMIT_S))[0]  # type: ignore[arg-type]


def test_a_greeting_may_be_in_the_request_or_in_the_first_frame(place: Federation) -> None:
    from chimera.engines.federation.wire.frames import REVISION, pack

    member = place.join("node", "node-0")
    assert greet(place, member, greeting(HELLO)) == ConnectedNodes({}, revision=REVISION)
    assert greet(place, member, None, pack(HELLO)) == ConnectedNodes({}, revision=REVISION)
    refused = greet(place, member, "no greeting")
    assert isinstance(refused, Refused)
    assert "cannot be read" in refused.reason
    other = greet(place, member, greeting(Hello(2, "boot", "0")))
    assert isinstance(other, Refused)
    assert "version" in other.reason


@pytest.mark.parametrize(
    ("variables", "proxy"),
    [
        ({}, None),
        ({"HTTPS_PROXY": "http://proxy:3128"}, "http://proxy:3128"),
        ({"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "hub.example.org"}, None),
        ({"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "example.com"}, "http://proxy:3128"),
    ],
    ids=["none", "proxy", "excepted", "another exception"],
)
def test_the_proxy_is_that_of_the_variables(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], proxy: str | None
) -> None:
    for name in ("https_proxy", "no_proxy", "all_proxy", "socks_proxy", "wss_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert proxy_for("https://hub.example.org:8443") == proxy


@pytest.mark.parametrize("hub", ["https://127.0.0.1:8443", "https://localhost:8443", "https://[::1]:8443"])
def test_a_hub_at_a_loopback_address_is_called_without_a_proxy(monkeypatch: pytest.MonkeyPatch, hub: str) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("ALL_PROXY", "socks5://proxy:1080")
    assert proxy_for(hub) is None


def test_names_are_resolved_once_at_a_time_and_the_last_answer_serves_an_outage(
    place: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name server answers once, and then not at all. Each question would take a thread."""
    member = at(place.join("node", "node-0"), place.url.replace("127.0.0.1", "localhost"))
    known = socket.getaddrinfo("127.0.0.1", int(place.url.rpartition(":")[2]), type=socket.SOCK_STREAM)
    asked, ended = 0, threading.Event()

    def answers_once(*_: Any, **__: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked > 1:
            ended.wait(LIMIT_S)
        return known

    async def reach() -> None:
        dialler = Dialler(member, HELLO)
        for _ in range(3):
            (await dialler.reach(lambda: 0.05, lambda _: None)).close()
        ended.set()

    monkeypatch.setattr(socket, "getaddrinfo", answers_once)
    asyncio.run(reach())
    assert asked == 2

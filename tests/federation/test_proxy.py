"""A member reaches its hub through a proxy, over the connection that was tried."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("websockets")

from chimera.core.errors import ConfigurationError, RunError
from chimera.engines.federation.credentials import Credentials
from chimera.engines.federation.wire.dialing import Dialler
from chimera.engines.federation.wire.frames import ConnectedNodes, Hello, unpack
from chimera.engines.federation.wire.link import Link
from chimera.engines.federation.wire.proxy import proxy_for
from chimera.federation.identity.join import join
from federation.federation_kit import LIMIT_S, Federation, federation

HUB = "hub.example.org"
ACCEPTED = b"HTTP/1.1 200 Connection established\r\nVia: 1.1 proxy\r\n\r\n"
USER = "http://member:s%20t@127.0.0.1:{}"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Federation]:
    with federation(tmp_path, names=[HUB]) as made:
        yield made


def joined(place: Federation) -> Credentials:
    """Return a node that has joined the hub on this machine, and dials it by a name that only a proxy knows."""
    direct = place.url.replace(HUB, "127.0.0.1")
    return replace(join(direct, place.code("node", "node-0"), place.folder / "node-0"), hub=place.url)


class Proxy:
    """A proxy on this machine.

    Parameters
    ----------
    answer : what it answers to a request. `ACCEPTED` is followed by the bytes of the hub; after another answer it hangs up.

    Attributes
    ----------
    heads : the request of each connection.
    """

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self.heads: list[bytes] = []
        self._serving: list[Any] = []

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await asyncio.gather(*self._serving)

    async def _serve(self, reader: Any, writer: Any) -> None:
        self._serving.append(asyncio.current_task())
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        writer.write(self._answer)
        if self._answer == ACCEPTED:
            port = int(head.split()[1].rpartition(b":")[2])
            from_hub, to_hub = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(_copy(reader, to_hub), _copy(from_hub, writer))
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


class Unused:
    """A peer of a link that never opens."""

    busy = False


async def _copy(reader: Any, writer: Any) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
    writer.transport.abort()


async def dialled(member: Credentials, hello: Hello) -> Any:
    """Return the first frame of the hub to a member."""
    dialler = Dialler(member, hello)
    async with asyncio.timeout(LIMIT_S):
        connection = await dialler.open(await dialler.reach(lambda: LIMIT_S, lambda _: None))
        frame = await connection.rest()
        connection.transport.abort()
    return unpack(frame)[0]


def without_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("https_proxy", "no_proxy", "all_proxy", "socks_proxy", "wss_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def through(proxy: Proxy, member: Credentials, monkeypatch: pytest.MonkeyPatch) -> Any:
    async def run() -> Any:
        async with proxy:
            monkeypatch.setenv("HTTPS_PROXY", USER.format(proxy.port))
            return await dialled(member, Hello(1, "boot", "0"))

    without_variables(monkeypatch)
    return asyncio.run(run())


def test_the_connection_that_reached_the_proxy_carries_the_connection_to_the_hub(
    place: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = Proxy(ACCEPTED)
    assert isinstance(through(proxy, joined(place), monkeypatch), ConnectedNodes)
    (head,) = proxy.heads
    hub = place.url.removeprefix("https://").encode()
    assert head.startswith(b"CONNECT " + hub + b" HTTP/1.1\r\nHost: " + hub + b"\r\n")
    assert base64.b64encode(b"member:s t") in head


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "the status 407"),
        (b"", "without an answer"),
        (b"HTTP/1.1 200 OK\r\n", "without an answer"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "is not HTTP"),
        (b"HTTP/1.1 \r\n\r\n", "is not HTTP"),
        (b"HTTP/1.1 200 OK\r\n\r\nmore", "bytes after its answer"),
        (b"x" * (1 << 15), "is not HTTP"),
    ],
    ids=["refused", "closed", "half", "no HTTP", "no status", "more", "too long"],
)
def test_another_answer_of_a_proxy_is_an_error(
    place: Federation, monkeypatch: pytest.MonkeyPatch, answer: bytes, reason: str
) -> None:
    proxy = Proxy(answer)
    member = joined(place)
    with pytest.raises(ConnectionError, match=reason):
        through(proxy, member, monkeypatch)
    assert len(proxy.heads) == 1


def test_joining_through_a_proxy_that_fails_names_the_proxy(
    place: Federation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    without_variables(monkeypatch)
    monkeypatch.setenv("HTTPS_PROXY", f"http://member:secret@{address}")
    with pytest.raises(RunError, match=f"cannot be reached through the proxy {address}: ") as caught:
        join(place.url, place.code("node", "node-1"), tmp_path / "node-1")
    assert "secret" not in str(caught.value)
    assert join(place.url.replace(HUB, "127.0.0.1"), place.code("node", "node-2"), tmp_path / "node-2").name == "node-2"


UNUSABLE = [
    "{}@proxy.example.org:3128",
    "ftp://{}@proxy.example.org:3128",
    "http://{}/a@proxy.example.org:3128",
    "http://{}@proxy.example.org:3128/path",
    "http://{}%ff@proxy.example.org:3128",
]


def reports(error: BaseException | None) -> str:
    """Return the texts and arguments of an exception, and of those before it."""
    return "" if error is None else f"{error} {vars(error)} {error.args}" + reports(error.__context__)


@pytest.mark.parametrize("url", UNUSABLE)
def test_an_invalid_proxy_is_an_error_without_the_password_for_each_member(
    place: Federation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str
) -> None:
    member = joined(place)
    without_variables(monkeypatch)
    monkeypatch.setenv("HTTPS_PROXY", url.format("member:secret"))
    for dials in (
        lambda: join(place.url, place.code("node", "node-1"), tmp_path / "node-1"),
        lambda: Dialler(member, Hello(1, "boot", "0")),
    ):
        with pytest.raises(
            ConfigurationError, match=r"^the proxy proxy\.example\.org:3128.* cannot be used: "
        ) as caught:
            dials()
        assert "member" not in reports(caught.value)
        assert "secret" not in reports(caught.value)


def test_the_reason_why_there_is_no_connection_has_no_password(
    place: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with Proxy(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n") as proxy:
            monkeypatch.setenv("HTTPS_PROXY", f"http://member:secret@127.0.0.1:{proxy.port}")
            link = Link(member, Hello(1, "boot", "0"), Unused())
            running = asyncio.create_task(link.run())
            async with asyncio.timeout(LIMIT_S):
                while not link.reason:
                    await asyncio.sleep(0.01)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            assert link.reason == "the proxy refuses CONNECT with the status 407"

    member = joined(place)
    without_variables(monkeypatch)
    asyncio.run(run())


def test_a_user_of_a_proxy_needs_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    without_variables(monkeypatch)
    monkeypatch.setenv("HTTPS_PROXY", "http://token@proxy.example.org:3128")
    assert proxy_for(f"https://{HUB}:8443") == "http://token:@proxy.example.org:3128"

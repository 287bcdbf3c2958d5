"""Frames that are handed over where they are read: none is lost, repeated or moved."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

pytest.importorskip("websockets")

from websockets.asyncio.client import connect
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed

from chimera.core.errors import DataError
from chimera.engines.federation.wire import prompt
from chimera.engines.federation.wire.prompt import ToHub, ToMember
from federation.federation_kit import LIMIT_S


def exchange(serving: Callable[[Any], Coroutine[Any, Any, None]], sending: Callable[[Any], Any]) -> None:
    """Run both sides of a connection until the server has ended."""

    async def main() -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def handler(connection: Any) -> None:
            try:
                await serving(connection)
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(None)

        async with serve(handler, "127.0.0.1", 0, compression=None, max_queue=4, create_connection=ToMember) as server:
            url = f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
            async with connect(url, compression=None, create_connection=ToHub) as connection:
                await asyncio.gather(sending(connection), asyncio.wait_for(done, LIMIT_S))

    asyncio.run(main())


def test_messages_keep_their_order_however_they_are_taken() -> None:
    """The receiver has no room for some messages; others come in several frames."""
    count = 500
    came: list[int] = []

    async def serving(connection: Any) -> None:
        def take(message: bytes) -> bool:
            number = int(message)
            if number % 7 in (2, 3):
                return False
            came.append(number)
            return True

        connection.take = take
        while count - 1 not in came:
            came.append(int(await connection.rest()))
            if came[-1] % 5 == 0:
                await asyncio.sleep(0)

    async def sending(connection: Any) -> None:
        for number in range(count):
            text = f"{number:06}".encode()
            await connection.send([text[:3], text[3:]] if number % 11 in (4, 5) or number == count - 1 else text)

    exchange(serving, sending)
    assert came == [*range(count)]


def test_an_error_ends_the_connection_and_no_later_message_is_taken() -> None:
    taken: list[bytes] = []

    async def serving(connection: Any) -> None:
        def take(message: bytes) -> bool:
            taken.append(message)
            raise DataError("no frame of this protocol")

        connection.take = take
        await connection.rest()

    async def sending(connection: Any) -> None:
        for message in (b"1", b"2", b"3"):
            await connection.send(message)

    with pytest.raises(DataError, match="no frame of this protocol"):
        exchange(serving, sending)
    assert taken == [b"1"]


def test_a_message_of_text_is_refused() -> None:
    async def serving(connection: Any) -> None:
        connection.take = lambda _: True
        await connection.rest()

    with pytest.raises(DataError, match="text"):
        exchange(serving, lambda connection: connection.send("text"))


def test_a_side_that_sends_pings_and_reads_no_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library answers each ping, however many answers wait."""
    monkeypatch.setattr(prompt, "_MAX_UNREAD_BYTES", 1 << 16)

    async def main() -> None:
        ended = asyncio.get_running_loop().create_future()

        async def handler(connection: Any) -> None:
            with contextlib.suppress(ConnectionClosed):
                await connection.rest()
            ended.set_result(None)

        async with serve(handler, "127.0.0.1", 0, compression=None, create_connection=ToMember) as server:
            raw = socket.socket()
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            raw.setblocking(False)
            await asyncio.get_running_loop().sock_connect(raw, next(iter(server.sockets)).getsockname())
            async with connect("ws://127.0.0.1", sock=raw, compression=None, close_timeout=0.1) as connection:
                transport, protocol = connection.transport, connection.protocol
                transport.pause_reading()
                for _ in range(1000):
                    for _ in range(100):
                        protocol.send_ping(bytes(125))
                    transport.writelines(protocol.data_to_send())
                    await asyncio.wait([ended], timeout=0)
                    if ended.done():
                        break
                assert ended.done()
                transport.abort()

    asyncio.run(main())

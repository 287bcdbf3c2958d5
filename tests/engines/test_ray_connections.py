"""Messages over TCP between members of a group on Ray, tested without Ray."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from chimera.core.errors import ActorLost, ConfigurationError
from chimera.core.message import Encoded
from chimera.engines.ray.groups import arrivals
from chimera.engines.ray.groups.arrivals import Arrivals, greet
from chimera.engines.ray.groups.frames import Incoming, framed
from chimera.engines.shared_memory.values import Packed
from ray_crew import Crew

MIB = 1 << 20


@pytest.fixture
def crew() -> Iterator[Crew]:
    crew = Crew(3)
    yield crew
    crew.close()


VALUES = [
    np.arange(10, dtype=np.int64),
    np.zeros((0, 3), np.float32),
    Encoded("kit", 5, (np.ones(5, np.float32), np.arange(3, dtype=np.int8)), {"scale": 2.0}),
    ("text", {"a": [1, None]}, np.ones((2, 2))),
    None,
]


def reader_of(data: bytes, at_once: int) -> Callable[[memoryview], int]:
    """Return a function that receives these bytes, some at a time."""
    left = [memoryview(data)]

    def read_into(block: memoryview) -> int:
        count = min(len(block), at_once, len(left[0]))
        block[:count], left[0] = left[0][:count], left[0][count:]
        return count

    return read_into


@pytest.mark.parametrize("at_once", [1, 7, MIB])
def test_messages_arrive_whatever_the_pieces_are(at_once: int) -> None:
    data = b"".join(piece for value in VALUES for piece in framed(Packed(value)))
    read_into, incoming, found = reader_of(data, at_once), Incoming(MIB), []
    while len(found) < len(VALUES):
        if (complete := incoming.read(read_into)) is not None:
            found.append(complete)
    assert [arrived.nbytes for arrived in found] == [80, 0, 23, 32, 0]
    np.testing.assert_array_equal(found[0].value, VALUES[0])
    assert found[1].value.shape == (0, 3)
    assert (found[2].value.codec, found[2].value.meta) == ("kit", {"scale": 2.0})
    assert found[3].value[:2] == VALUES[3][:2]
    assert not any(array.flags.writeable for array in (found[0].value, *found[2].value.arrays, found[3].value[2]))
    assert {arrived.step for arrived in found} == {None}
    with pytest.raises(ConnectionResetError):
        incoming.read(read_into)


@pytest.mark.parametrize("sizes", [(10, MIB), (0, 10), (-1, 10), (10, -1), (1 << 62, 1 << 62)])
def test_a_message_of_an_impossible_size_is_refused_before_memory_is_allocated(sizes: tuple[int, int]) -> None:
    with pytest.raises(ConnectionAbortedError, match=str(sizes[0])):
        Incoming(MIB).read(reader_of(struct.pack("<qq", *sizes), MIB))


def test_values_reach_all_members_and_the_sender_itself(crew: Crew) -> None:
    members = crew.connect()
    array = np.ones(1000, np.float32)
    members[0].send(dict.fromkeys(range(3), array))
    for rank, member in enumerate(members):
        np.testing.assert_array_equal(member.receive([0])[0], array)
        assert crew.costs[rank].received_bytes == (4000 if rank else 0)
    assert crew.costs[0].sent_bytes == 4000


def test_values_larger_than_the_buffers_of_the_system_cross(crew: Crew) -> None:
    members = crew.connect()
    arrays = [np.full(4 * MIB, rank, np.float32) for rank in range(3)]

    def exchange(rank: int) -> list[float]:
        others = [other for other in range(3) if other != rank]
        members[rank].send(dict.fromkeys(others, arrays[rank]))
        return [float(array.min() + array.max()) / 2 for array in members[rank].receive(others).values()]

    assert list(crew.threads.map(exchange, range(3))) == [[1, 2], [0, 2], [0, 1]]


def test_the_first_values_are_in_the_order_of_arrival(crew: Crew) -> None:
    members = crew.connect()
    for rank in (2, 1):
        members[rank].send({0: rank})
        assert members[0].receive([rank]) == {rank: rank}
    members[2].send({0: "second"})
    members[0]._wait(lambda: bool(members[0]._peers[2].values))
    members[1].send({0: "first"})
    members[0]._wait(lambda: bool(members[0]._peers[1].values))
    assert list(members[0].receive([0, 1, 2], count=2)) == [2, 1]


def test_strangers_do_not_become_members(crew: Crew) -> None:
    first = crew.threads.submit(crew.connect_one, 0)
    host, port, _ = crew.board.get("messages/0").decode().split()
    for hello in (b"", b"short", struct.pack("<32sq", b"0" * 32, 1)):
        with socket.create_connection((host, int(port))) as stranger:
            stranger.sendall(hello)
            stranger.shutdown(socket.SHUT_WR)
            assert stranger.recv(1) == b""  # refused
    rest = [crew.threads.submit(crew.connect_one, rank) for rank in (1, 2)]
    members = [first.result(), *(one.result() for one in rest)]
    members[1].send({0: "from a member"})
    assert members[0].receive([1]) == {1: "from a member"}


def test_silent_strangers_do_not_delay_members(crew: Crew) -> None:
    first = crew.threads.submit(crew.connect_one, 0)
    host, port, _ = crew.board.get("messages/0").decode().split()
    with ExitStack() as stack:
        for count in range(30):  # each would have 3 s for its secret
            stranger = stack.enter_context(socket.create_connection((host, int(port))))
            stranger.sendall(b"x" * (count % 3))
        rest = [crew.threads.submit(crew.connect_one, rank) for rank in (1, 2)]
        members = [one.result(timeout=15) for one in (first, *rest)]
        members[1].send({0: "from a member"})
        assert members[0].receive([1]) == {1: "from a member"}


def test_strangers_beyond_the_limit_replace_the_oldest_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "_MAX_WAITING", 2)
    secret = "s" * 32
    with socket.create_server(("127.0.0.1", 0)) as listener, Arrivals(listener, secret) as found, ExitStack() as stack:
        connected = [stack.enter_context(socket.create_connection(listener.getsockname())) for _ in range(4)]
        assert found.wait(0.05) == []
        for oldest in connected[:2]:
            assert oldest.recv(1) == b""
        greet(connected[3], secret, 7)
        [(rank, sock)] = found.wait(10)
        with sock:
            assert rank == 7


def test_what_was_sent_before_a_death_is_received_and_then_the_death_is_known(crew: Crew) -> None:
    members = crew.connect()
    array = np.ones(10_000, np.float32)
    members[0].send({1: array, 2: array})
    members[2].send({1: "from a survivor"})
    members[0].close()  # as the end of its process does
    crew.dead.add("member 0")
    for member in members[1:]:
        np.testing.assert_array_equal(member.receive([0])[0], array)
        with pytest.raises(ActorLost, match="member 0 died"):
            member.receive([0])
    assert members[1].receive([2]) == {2: "from a survivor"}
    members[1].send({0: "lost", 2: "received"})
    assert members[2].receive([1]) == {1: "received"}


def test_a_death_in_the_middle_of_a_message_loses_it(crew: Crew) -> None:
    members = crew.connect()
    members[0]._peers[1].sock.send(framed(Packed(np.ones(100)))[0])
    members[0].close()  # as the end of its process does
    crew.dead.add("member 0")
    with pytest.raises(ActorLost, match="member 0 died"):
        members[1].receive([0])


def test_unusable_ranks_are_told(crew: Crew) -> None:
    members = crew.connect()
    for ranks in ([0, 0], [3], [-1]):
        with pytest.raises(ConfigurationError, match="use each rank from 0 once"):
            members[1].receive(ranks)
    with pytest.raises(ConfigurationError, match="use each rank from 0 once"):
        members[1].send({3: 1})

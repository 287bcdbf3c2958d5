"""Collectives over the connections of a group on Ray, tested without Ray: the members are threads."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from chimera.core.errors import ActorLost, ConfigurationError
from chimera.core.parameters import reduce_in_order
from chimera.engines.ray.groups import tcp_group
from chimera.engines.ray.groups.nccl_group import NcclGroup
from chimera.engines.ray.groups.nccl_link import c10d
from chimera.engines.ray.groups.tcp_group import TcpGroup
from ray_crew import Crew

PIECE, LIMIT_S = 7, 30.0
Vector = NDArray[np.float32]


class Groups:
    """A group of each member, in threads."""

    def __init__(self, size: int) -> None:
        self.crew, self.size = Crew(size), size
        self.connections = self.crew.connect()
        self.members = [self._member(rank) for rank in range(size)]

    def _member(self, rank: int) -> TcpGroup:
        return TcpGroup(self.crew.costs[rank], self.crew.threads_of(rank), lambda: self.connections[rank])

    def start(self, action: Callable[[TcpGroup, int], Any]) -> list[Future[Any]]:
        return [self.crew.threads.submit(action, member, rank) for rank, member in enumerate(self.members)]

    def all(self, action: Callable[[TcpGroup, int], Any]) -> list[Any]:
        return [future.result(LIMIT_S) for future in self.start(action)]

    def narrow(self) -> None:
        """Let the system take few bytes at a time."""
        for connections in self.connections:
            for peer in connections._peers.values():
                peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16384)

    def __enter__(self) -> Groups:
        return self

    def __exit__(self, *_: object) -> None:
        self.crew.close()


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_group, "_PIECE", PIECE)


@pytest.fixture(scope="module")
def groups() -> Iterator[list[Groups]]:
    """Groups of one to five members; many tests use each."""
    made = [Groups(size) for size in range(1, 6)]
    yield made
    for each in made:
        each.crew.close()


def vector_of(rank: int, size: int, seed: int = 0) -> Vector:
    return np.random.default_rng([rank, seed]).normal(size=size).astype(np.float32)


@given(
    size=st.integers(0, 12 * PIECE),
    count=st.integers(1, 5),
    op=st.sampled_from(["mean", "sum"]),
    seed=st.integers(0, 9),
)
def test_all_members_get_the_bits_of_the_sum_in_rank_order(
    groups: list[Groups], size: int, count: int, op: Any, seed: int
) -> None:
    vectors = [vector_of(rank, size, seed) for rank in range(count)]
    expected = reduce_in_order([*vectors], np.empty(size, np.float32), 1 / count if op == "mean" else 1.0)
    found = groups[count - 1].all(lambda member, rank: member.all_reduce(vectors[rank], op))
    for rank, array in enumerate(found):
        assert array is vectors[rank]
        assert array.tobytes() == expected.tobytes()


@given(size=st.integers(0, 12 * PIECE), count=st.integers(1, 5), root=st.integers(0, 4))
def test_all_members_get_the_array_of_the_root(groups: list[Groups], size: int, count: int, root: int) -> None:
    root %= count
    vectors = [vector_of(rank, size) for rank in range(count)]
    expected = vectors[root].tobytes()
    groups[count - 1].all(lambda member, rank: member.broadcast(vectors[rank], np.int64(root)))
    assert {vector.tobytes() for vector in vectors} == {expected}


@pytest.mark.parametrize("count", [2, 3])
def test_a_vector_may_change_as_soon_as_a_collective_has_ended(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_group, "_PIECE", 30_000)
    size = 200_000  # more than the buffers of the system hold
    with Groups(count) as groups:
        groups.narrow()

        def change(member: TcpGroup, rank: int) -> list[float]:
            found, vector = [], np.empty(size, np.float32)
            for turn in range(5):
                vector[:] = rank + turn
                member.all_reduce(vector, "sum")
                found.append(float(vector.min() + vector.max()) / 2)
                vector[:] = -1000.0
                member.broadcast(vector, root=turn % count)
                found.append(float(vector.min() + vector.max()) / 2)
            return found

        ranks = sum(range(count))
        expected = [value for turn in range(5) for value in (ranks + count * turn, -1000.0)]
        assert groups.all(change) == [expected] * count


def test_messages_and_collectives_do_not_mix() -> None:
    def use(member: TcpGroup, rank: int) -> tuple[float, Any]:
        if rank == 0:
            member.send({1: "before", 2: "before"})
        total = member.all_reduce(np.full(100, rank, np.float32), "sum")
        member.barrier()
        return float(total[0]), member.receive([0]) if rank else None

    with Groups(3) as groups:
        assert groups.all(use) == [(3.0, None), (3.0, {0: "before"}), (3.0, {0: "before"})]


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize(("size", "piece"), [(10, PIECE), (100 * PIECE, PIECE), (10**6, 10**5)])
def test_members_that_do_not_ask_for_the_same_are_told_and_can_continue(
    count: int, size: int, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_group, "_PIECE", piece)

    def differ(member: TcpGroup, rank: int) -> None:
        member.barrier() if rank == 1 else member.all_reduce(np.ones(size, np.float32), "sum")

    def unequal(member: TcpGroup, rank: int) -> None:
        member.broadcast(np.ones(size + rank, np.float32), 1)

    with Groups(count) as groups:
        groups.narrow()
        for action, said in (
            (differ, "rank 0: all_reduce sum, rank 1: barrier"),
            (unequal, rf"vectors of unequal sizes: \[{size}, {size + 1}"),
        ):
            for future in groups.start(action):
                with pytest.raises(ConfigurationError, match=said):
                    future.result(LIMIT_S)
            groups.all(lambda member, _: member.barrier())
            found = groups.all(lambda member, rank: float(member.all_reduce(np.full(50, rank, np.float32), "sum")[49]))
            assert found == [sum(range(count))] * count
        kept = [peer.parts for connections in groups.connections for peer in connections._peers.values()]
        assert not any(part for parts in kept for part in parts.values())


@pytest.mark.parametrize("arrives", [False, True], ids=["before it sends", "in the middle"])
def test_the_death_of_a_member_ends_a_collective(arrives: bool) -> None:
    with Groups(3) as groups:
        groups.all(lambda member, _: member.barrier())
        if arrives:
            for size in (0, PIECE):
                parts = dict.fromkeys((0, 1), vector_of(2, size))
                groups.connections[2].post(parts, (4, "all_reduce", "sum", 300))
        waiting = [
            groups.crew.threads.submit(groups.members[rank].all_reduce, vector_of(rank, 300), "sum") for rank in (0, 1)
        ]
        groups.connections[2].close()  # as the end of its process does
        groups.crew.dead.add("member 2")
        for future in waiting:
            with pytest.raises(ActorLost, match="member 2 died"):
                future.result(LIMIT_S)


def test_a_value_that_was_sent_before_a_death_survives_a_collective_that_fails() -> None:
    with Groups(3) as groups:
        groups.members[2].send({0: "before"})
        groups.connections[2].close()  # as the end of its process does
        groups.crew.dead.add("member 2")
        for _ in range(2):  # the second one writes to a connection that has been reset
            with pytest.raises(ActorLost, match="member 2 died"):
                groups.members[0].barrier()
        assert groups.members[0].receive([2]) == {2: "before"}


def test_a_death_while_the_members_connect_is_a_loss() -> None:
    crew = Crew(2)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        crew.board.set("messages/0", f"127.0.0.1 {closed.getsockname()[1]} secret")
    crew.dead.add("member 0")
    with pytest.raises(ActorLost, match="member 0 died"):
        crew.connect_one(1)
    crew.close()


def test_costs_are_those_of_the_other_engines() -> None:
    with Groups(4) as groups:
        groups.all(
            lambda member, _: (member.all_reduce(np.ones(100, np.float32)), member.broadcast(np.ones(10, np.float32)))
        )
        assert [costs.collective_bytes for costs in groups.crew.costs] == [600, 640, 640, 640]
        assert {costs.sent_bytes + costs.received_bytes for costs in groups.crew.costs} == {0}


class OnProcessors:
    """The link of `NcclGroup` over gloo: the same interface of torch.distributed, without GPUs."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        gloo = c10d().ProcessGroupGloo
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname="127.0.0.1")]
        options._timeout = timedelta(seconds=LIMIT_S)
        self.group = gloo(store, rank, size, options)

    def tensor(self, flat: NDArray[Any]) -> Any:
        import torch

        return torch.from_numpy(flat.copy())

    def bring(self, tensor: Any, flat: Vector) -> None:
        np.copyto(flat, tensor.numpy())

    def done(self, work: Any, within_s: float) -> bool:
        work.wait()
        return True

    def end(self) -> None: ...


@pytest.mark.parametrize("count", [2, 3])
def test_groups_on_gpus_compute_the_same_bits(groups: list[Groups], count: int) -> None:
    from torch.distributed import HashStore  # type: ignore[attr-defined]

    store = HashStore()
    crew = Crew(count)
    links: list[Any] = list(crew.threads.map(lambda rank: OnProcessors(store, rank, count), range(count)))

    def use(member: TcpGroup, rank: int) -> list[bytes]:
        member.barrier()
        sums = [member.all_reduce(vector_of(rank, size), op).tobytes() for size in (0, 1, 50) for op in ("mean", "sum")]
        return [*sums, member.broadcast(vector_of(rank, 20), 1).tobytes()]

    def member(rank: int) -> NcclGroup:
        return NcclGroup(
            crew.costs[rank], crew.threads_of(rank), lambda: pytest.fail("no messages"), lambda: links[rank]
        )

    members = [member(rank) for rank in range(count)]
    found = list(crew.threads.map(use, members, range(count)))
    assert found == groups[count - 1].all(use)
    crew.close()

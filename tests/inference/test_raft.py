"""The journal on three voters: real processes that are killed, stopped and restarted."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from chimera.core.errors import ConfigurationError
from chimera.engines.http import wire
from chimera.inference.journal.journal import Journal, Output
from chimera.inference.journal.raft import voter as voter_module
from chimera.inference.journal.raft.connection import Connection
from chimera.inference.journal.raft.journal import NoMajority, RaftJournal
from chimera.inference.journal.raft.packing import packed_list
from chimera.inference.journal.raft.state import REFUSED, Acquire, Append, Piece, RaftState, Renew
from chimera.inference.journal.raft.voter import REGULAR
from chimera.inference.journal.records import Cancelled
from inference.journal_kit import LONG_S, JournalKit, acquired, wait_until
from inference.voters import TOKEN, Voters, following

SUCCESSOR_S = 1.5
LEASE_S = 0.6
BINDS = pytest.mark.skipif(sys.platform != "linux", reason="processes are bound to a core on Linux only: run it there")


@pytest.fixture
def voters(tmp_path: Path) -> Iterator[Voters]:
    there = Voters(tmp_path / "cluster")
    yield there
    there.end()


@pytest.fixture
def follower(voters: Voters, tmp_path: Path) -> Iterator[RaftJournal]:
    journal = following(tmp_path / "cluster")
    yield journal
    journal.close()


# Voters draw random numbers in threads while hypothesis draws: it takes that for a draw by the test.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning")
@pytest.mark.long
class TestRaftJournal(JournalKit):
    """All that a journal promises, to processes that follow three voters."""

    @pytest.fixture(autouse=True)
    def all_voters(self) -> Iterator[None]:
        self.there: dict[Path, Voters] = {}
        yield
        for voters in self.there.values():
            voters.end()

    def opened(self, place: Path) -> Journal:
        if place not in self.there:
            self.there[place] = Voters(place)
        return following(place)

    def source(self) -> str:
        return (
            "import sys, json, tempfile; from pathlib import Path; "
            "from chimera.inference.journal.raft.journal import RaftJournal; "
            "voters = json.loads((Path(sys.argv[1]) / 'voters.json').read_text()); "
            f"journal = RaftJournal(voters, None, {TOKEN!r}, Path(tempfile.mkdtemp(dir=sys.argv[1])))"
        )


@pytest.mark.long
@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_the_next_coordinator_writes_soon_after_the_leading_voter_and_its_lease_are_gone(
    voters: Voters, follower: RaftJournal, how: str
) -> None:
    first = acquired(follower, "old", LEASE_S)  # the owner dies with its voter: the lease is not renewed
    for number in range(50):
        follower.append(first.epoch, [Cancelled("1", str(number), 0.0)])
    leader = voters.leader(follower)
    follower.renew(first.epoch, LEASE_S)
    if how == "killed":
        voters.kill(leader)
    else:
        voters.signal(leader, signal.SIGSTOP)
    struck_s = time.monotonic()
    second = acquired(follower, "new", LONG_S)
    follower.append(second.epoch, [Cancelled("1", "first dispatch", 0.0)])
    assert time.monotonic() - struck_s < SUCCESSOR_S
    assert second.epoch > first.epoch
    assert [one.why for one in all_of(follower)] == [*map(str, range(50)), "first dispatch"]


@pytest.mark.long
def test_a_voter_that_was_killed_catches_up_and_a_majority_is_enough(
    voters: Voters, follower: RaftJournal, tmp_path: Path
) -> None:
    epoch = acquired(follower, "c0", LONG_S).epoch
    voters.kill(0)
    body = bytes(5 << 20)
    for number in range(8):  # 40 MB
        output = Output("1", number, number, 1, body + bytes([number]))
        follower.append(epoch, [Cancelled("1", str(number), 0.0)], outputs=[output])
    voters.start(0)
    voters.await_start(0)
    voters.kill(1)  # now the first is needed for all that comes
    follower.append(epoch, [Cancelled("1", "with the first", 0.0)])
    voters.start(1)
    voters.await_start(1)
    voters.kill(2)
    follower.append(epoch, [Cancelled("1", "with the second", 0.0)])
    again = following(tmp_path / "cluster")
    wait_until(lambda: len(all_of(again)) == 10)
    assert [one.why for one in all_of(again)] == [*map(str, range(8)), "with the first", "with the second"]
    assert [one.body[-1] for one in again.outputs("1")] == list(range(8))
    again.close()


@pytest.mark.long
def test_a_journal_without_a_majority_of_its_voters_cannot_be_read(voters: Voters, follower: RaftJournal) -> None:
    epoch = acquired(follower, "c0", LONG_S).epoch
    follower.append(epoch, [Cancelled("1", "kept", 0.0)])
    leader = voters.leader(follower)
    voters.kill(leader)
    voters.kill((leader + 1) % 3)
    newcomer = following(voters.place)
    try:
        assert newcomer.acquire("c1", "", LONG_S) is None
        for read in (
            newcomer.lease,
            newcomer.jobs_with_queries,
            lambda: all_of(newcomer),
            lambda: [*newcomer.outputs("1")],
        ):
            with pytest.raises(NoMajority, match="cannot be read"):
                read()  # an empty answer would say that there is nothing
    finally:
        newcomer.close()


@pytest.mark.long
@BINDS
def test_a_voter_that_has_little_of_its_core_catches_up(voters: Voters, follower: RaftJournal) -> None:
    """What it lacks takes it far longer to hear than an election waits."""
    epoch = acquired(follower, "c0", LONG_S).epoch
    voters.kill(0)
    follower.append(epoch, [], inputs=[("1", 0, wire.pack([bytes(40 << 20)]))])
    voters.start(0)
    voters.await_start(0)
    with starved(voters.process(0).pid):
        voters.kill(1)
        follower.append(epoch, [Cancelled("1", "with the first", 0.0)])
    assert [one.why for one in all_of(follower)] == ["with the first"]


@contextlib.contextmanager
def starved(process: int) -> Iterator[None]:
    """Let a process share one core with others that never rest."""
    core = min(os.sched_getaffinity(process))
    for thread in Path(f"/proc/{process}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})
    restless = [subprocess.Popen([sys.executable, "-c", f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"])
                for _ in range(3)]  # fmt: skip
    try:
        yield
    finally:
        for one in restless:
            one.kill()
            one.wait()


@pytest.mark.long
def test_who_comes_with_nothing_is_sent_a_copy_of_the_state(
    voters: Voters, follower: RaftJournal, tmp_path: Path
) -> None:
    epoch = acquired(follower, "c0", LONG_S).epoch
    for number in range(30):
        output = Output("1", number, number, 1, bytes([number]) * (1 << 20))
        follower.append(epoch, [Cancelled("1", str(number), 0.0)], outputs=[output])
    for number in range(3):
        voters.compact(number)
    voters.kill(0)
    shutil.rmtree(tmp_path / "cluster" / "0")  # its disk is lost
    voters.start(0)
    voters.await_start(0)
    follower.append(epoch, [Cancelled("1", "after the copy", 0.0)])
    wait_until(lambda: (tmp_path / "cluster" / "0" / "state").exists())
    voters.kill(1)
    follower.append(epoch, [Cancelled("1", "with the new one", 0.0)])
    another = following(tmp_path / "cluster")
    wait_until(lambda: len(all_of(another)) == 32)
    assert [one.why for one in all_of(another)] == [*map(str, range(30)), "after the copy", "with the new one"]
    assert [one.body for one in another.outputs("1")] == [bytes([number]) * (1 << 20) for number in range(30)]
    another.close()


@pytest.mark.long
@BINDS
def test_a_large_copy_comes_through_however_slowly_it_is_heard(tmp_path: Path) -> None:
    """It is more than may wait on its way."""
    copy = copy_of(300)
    with voters_with(copy, tmp_path) as voters:
        follower = following(tmp_path)
        with contextlib.closing(follower):
            received = tmp_path / "0" / "state"
            with starved(voters.process(0).pid):
                wait_until(received.exists)
            assert received.read_bytes() == copy
            voters.kill(1)
            follower.append(1, [Cancelled("1", "with the first", 0.0)])
            assert sum(one.count for one in follower.outputs("1")) == 300


@pytest.mark.long
def test_a_copy_that_is_broken_off_in_the_middle_is_begun_anew(tmp_path: Path) -> None:
    """Whether a message in flight has arrived is unknown."""
    copy = copy_of(300)
    with voters_with(copy, tmp_path) as voters, contextlib.ExitStack() as ends:
        draft, received = (tmp_path / "0" / name for name in ("state.1.tmp", "state"))
        for times in (1, 2, 3):
            wait_until(lambda times=times: size_of(draft) > times << 22 or received.exists())
            for leader in (1, 2):
                candidate = {"type": "request_vote", "term": 100 * times, "last_log_index": 0, "last_log_term": 0}
                message = msgspec.msgpack.encode(candidate)
                ends.callback(told(voters.addresses[leader], TOKEN, voters.addresses[0].encode(), message).close)
        wait_until(received.exists)
        assert received.read_bytes() == copy


def copy_of(count: int) -> bytes:
    """Return what a voter keeps on its disk of so many outputs of 1 MiB each."""
    state = RaftState()
    state.apply(packed(0, ("acquire", 0)))
    outputs = [("1", number, number, 1, bytes(1 << 20)) for number in range(count)]
    state.apply(msgspec.msgpack.encode(Append(b"all", 1, [], outputs, [])))
    return msgspec.msgpack.encode(((REGULAR, 9, 1), (REGULAR, 8, 1), state.dump()))


@contextlib.contextmanager
def voters_with(copy: bytes, place: Path) -> Iterator[Voters]:
    """Start voters of whom two have a copy of the state, and the first has nothing."""
    for number in (1, 2):
        folder = place / str(number)
        folder.mkdir()
        (folder / "state").write_bytes(copy)
    voters = Voters(place)
    try:
        yield voters
    finally:
        voters.end()


def size_of(file: Path) -> int:
    """Return how much is in a file; nothing is in one that there is not."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


@pytest.mark.long
def test_all_voters_may_end_at_once_and_one_alone_writes_nothing(
    voters: Voters, follower: RaftJournal, tmp_path: Path
) -> None:
    epoch = acquired(follower, "c0", LONG_S).epoch
    queries = [f"query {number}" for number in range(1000)]
    follower.append(epoch, [Cancelled("1", "kept", 0.0)], inputs=[("1", 0, wire.pack(queries))])
    voters.kill(0)
    voters.kill(1)
    with pytest.raises(NoMajority, match="two of the three"):
        follower.append(epoch, [Cancelled("1", "not agreed upon", 0.0)])
    voters.kill(2)
    for number in range(3):
        voters.start(number)
    again = following(tmp_path / "cluster")
    wait_until(lambda: all_of(again))
    assert all_of(again)[0].why == "kept"
    assert again.queries("1", 998, 2) == ["query 998", "query 999"]
    again.close()


@pytest.mark.long
def test_a_log_of_large_writes_is_cut_short_before_it_has_many_entries(
    voters: Voters, follower: RaftJournal, tmp_path: Path
) -> None:
    epoch = acquired(follower, "c0", LONG_S).epoch
    for batch in range(9):
        follower.append(epoch, [], outputs=[Output("1", batch, batch, 1, bytes(8 << 20))])
    slowest_s = 0.0

    def copied() -> bool:
        nonlocal slowest_s
        began_s = time.monotonic()
        follower.renew(epoch, LONG_S)
        slowest_s = max(slowest_s, time.monotonic() - began_s)
        return all((tmp_path / "cluster" / str(number) / "state").exists() for number in range(3))

    wait_until(copied)
    assert slowest_s < LEASE_S  # a coordinator does not lose the lease while voters write snapshots
    assert len(list(follower.outputs("1"))) == 9


@pytest.mark.long
def test_what_a_voter_holds_stays_bounded_while_jobs_come_and_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit, size, per_job = 1 << 20, 1 << 17, 4
    monkeypatch.setattr(voter_module, "_LOG_BYTES", limit)
    with contextlib.ExitStack() as held:
        free = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in free]
    with contextlib.ExitStack() as opened:
        journals = [
            opened.enter_context(contextlib.closing(RaftJournal(addresses, own, TOKEN, tmp_path / str(number))))
            for number, own in enumerate(addresses)
        ]
        epoch = acquired(journals[0], "c0", LONG_S).epoch
        for job in range(60):
            outputs = [Output(str(job), batch, batch, 1, bytes(size)) for batch in range(per_job)]
            journals[0].append(epoch, [Cancelled(str(job), "", 0.0)], outputs=outputs)
            for _ in journals[0].drop(epoch, [str(job - 1)]):
                pass
        for number, journal in enumerate(journals):
            wait_until(lambda journal=journal: logged_bytes(journal) <= 2 * limit)  # type: ignore[misc]
            wait_until(lambda journal=journal: len(journal._state.dump()) < (per_job + 1) * size)  # type: ignore[misc]
            assert (tmp_path / str(number) / "state").stat().st_size < 2 * per_job * size + limit


def logged_bytes(journal: RaftJournal) -> int:
    """Return the size of the entries that a voter's log has in memory."""
    log = journal._voter._SyncObj__raftLog
    return sum(len(log[index][0]) for index in range(len(log)))


@pytest.mark.long
def test_a_write_of_any_size_is_kept_whole(follower: RaftJournal) -> None:
    epoch = acquired(follower, "c0", LONG_S).epoch
    large = bytes(range(256)) * (40 << 12)  # 40 MB, in pieces
    follower.append(epoch, [Cancelled("1", "large", 0.0)], inputs=[("1", 0, wire.pack([large]))])
    assert follower.queries("1", 0, 1) == [large]
    assert [one.why for one in all_of(follower)] == ["large"]


def all_of(journal: Journal) -> list[Any]:
    return list(journal.records())


class Harm:
    """The effect of a pickle if it is loaded."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self._file,)


@pytest.mark.long
def test_no_voter_loads_a_pickle_even_of_one_who_has_the_token(voters: Voters, tmp_path: Path) -> None:
    harm = pickle.dumps(Harm(tmp_path / "harmed"), protocol=2)
    append = {"type": "append_entries", "term": 1000, "commit_index": 50, "prevLogIdx": 1, "prevLogTerm": 0}
    whole = {"type": "append_entries", "term": 1000, "commit_index": 50}
    entries = [[bytes([kind]) + harm, 2 + kind, 1000] for kind in range(4)]
    with contextlib.ExitStack() as ends:
        for message in (
            harm,
            msgspec.msgpack.encode({**append, "transmission": "start", "data": b""}),
            msgspec.msgpack.encode({**append, "transmission": "finish", "data": harm}),
            msgspec.msgpack.encode({**append, "entries": entries}),
            msgspec.msgpack.encode({**whole, "serialized": [harm, True, False]}),
            msgspec.msgpack.encode({**whole, "serialized": [b"", False, True]}),
            *(msgspec.msgpack.encode({"type": "apply_command", "command": bytes([kind]) + harm}) for kind in range(4)),
        ):
            connection = told(voters.addresses[0], TOKEN, voters.addresses[2].encode(), message)
            ends.callback(connection.close)
            with contextlib.suppress(OSError):  # it broke off, or answers this or that
                connection._socket.settimeout(0.3)
                while True:
                    connection.receive()
    assert not (tmp_path / "harmed").exists()
    assert voters.process(0).poll() is None


def told(address: str, token: str, who: bytes, message: bytes) -> Connection:
    host, _, port = address.partition(":")
    plain = socket.create_connection((host, int(port)), 5)
    try:
        connection = Connection(plain, token.encode(), client=True)
    except OSError:
        plain.close()
        raise
    connection.end_handshake()
    connection.send(who)
    connection.send(message)
    return connection


@pytest.mark.long
def test_who_has_not_the_token_is_turned_away_and_holds_nobody_up(voters: Voters, follower: RaftJournal) -> None:
    with pytest.raises(ConnectionError):
        told(voters.addresses[0], "another token", b"", b"")
    host, _, port = voters.addresses[voters.leader(follower)].partition(":")
    with contextlib.ExitStack() as silent:
        for _ in range(100):
            silent.enter_context(socket.create_connection((host, int(port))))
        epoch = acquired(follower, "c0", LONG_S).epoch
        follower.append(epoch, [Cancelled("1", "", 0.0)])


def test_a_voter_says_in_a_line_what_it_was_given_wrongly(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="not one of the voters"):
        RaftJournal(["127.0.0.1:1"], "127.0.0.1:2", TOKEN, tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        own = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigurationError, match=r"cannot start.*in use"):
            RaftJournal([own], own, TOKEN, tmp_path)


COMMANDS = st.lists(
    st.one_of(
        st.builds(lambda serial: ("acquire", serial), st.integers(0, 4)),
        st.builds(lambda epoch: ("renew", epoch), st.integers(0, 4)),
        st.builds(lambda epoch, batch: ("append", epoch, batch), st.integers(0, 4), st.integers(0, 3)),
    ),
    max_size=20,
)


@given(COMMANDS, st.integers(0, 20), st.randoms(use_true_random=False))
def test_copies_that_carry_out_the_same_commands_are_the_same_wherever_one_was_dumped_or_told_twice(
    commands: list[Any], cut: int, chance: Any
) -> None:
    one, two = RaftState(), RaftState()
    for number, command in enumerate(commands):
        body = packed(number, command)
        reply = one.apply(body)
        if number == cut:
            dumped = two.dump()
            two = RaftState()
            two.load(dumped)
        for _ in range(chance.randint(1, 2)):
            assert two.apply(body) == reply
    assert one.dump() == two.dump()
    epochs = [reply for number, command in enumerate(commands) if (reply := one.apply(packed(number, command))) and
              command[0] == "acquire"]  # fmt: skip
    assert epochs == list(range(1, len(epochs) + 1))


def packed(number: int, command: Any) -> bytes:
    key = b"%d" % number
    if command[0] == "acquire":
        return msgspec.msgpack.encode(Acquire(key, f"c{number}", "", 1.0, command[1]))
    if command[0] == "renew":
        return msgspec.msgpack.encode(Renew(key, command[1], 1.0))
    output = ("1", command[2], command[2], 1, key)
    return msgspec.msgpack.encode(Append(key, command[1], [key], [output], []))


@given(st.binary(max_size=40))
@example(b"\x91\xa1\xff")  # no text
def test_bytes_that_are_no_command_change_nothing(body: bytes) -> None:
    state = RaftState()
    before = state.dump()
    assert state.apply(body) == REFUSED
    assert state.dump() == before


def test_pieces_of_who_lost_the_lease_are_forgotten() -> None:
    state = RaftState()
    append = msgspec.msgpack.encode(Append(b"w", 1, [b"r"], [], []))
    assert state.apply(packed(0, ("acquire", 0))) == 1
    assert state.apply(msgspec.msgpack.encode(Piece(b"p0", b"w", 0, 2, append[:5]))) == ""
    assert state.apply(packed(1, ("acquire", 1))) == 2
    assert state.apply(msgspec.msgpack.encode(Piece(b"p1", b"w", 1, 2, append[5:]))) == REFUSED
    assert state.records(0, 9) == []


@pytest.mark.parametrize("together", [1, 500])
@pytest.mark.parametrize("count", [0, 1, 15, 16, 499, 501, 1 << 16])
def test_a_list_in_pieces_has_the_bytes_of_one_that_is_packed_at_once(count: int, together: int) -> None:
    values = [(str(number), number, bytes(number % 5)) for number in range(count)]
    assert b"".join(packed_list(values, together=together)) == msgspec.msgpack.encode(values)

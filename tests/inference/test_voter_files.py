"""The files of a voter after a loss of power or a kill: a voter has all that it acknowledged, or names the damaged file."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from chimera.core.errors import DataError
from chimera.inference.journal.raft.journal import RaftJournal
from chimera.inference.journal.raft.library import SERIALIZER_STATE
from chimera.inference.journal.raft.snapshot import SnapshotWriter
from chimera.inference.journal.raft.state import RaftState
from chimera.inference.journal.raft.voter import REGULAR
from chimera.inference.journal.records import Cancelled
from inference.journal_kit import acquired, wait_until
from inference.voters import TOKEN

pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # of pysyncobj
SNAPSHOT = msgspec.msgpack.encode(((REGULAR, 9, 1), (REGULAR, 8, 1), RaftState().dump()))


@pytest.fixture
def address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


@contextlib.contextmanager
def voter(address: str, folder: Path) -> Iterator[RaftJournal]:
    """Run a voter that is a majority by itself."""
    with contextlib.closing(RaftJournal([address], address, TOKEN, folder)) as journal:
        yield journal


def append(journal: RaftJournal, *whys: str) -> None:
    epoch = acquired(journal, "c0", 0.0).epoch
    for why in whys:
        journal.append(epoch, [Cancelled("1", why, 0.0)])


def compact(journal: RaftJournal, folder: Path) -> None:
    journal._voter.forceLogCompaction()
    wait_until((folder / "state").exists)


def whys(journal: RaftJournal) -> list[str]:
    return [record.why for record in journal.records() if isinstance(record, Cancelled)]


def refused(address: str, folder: Path, file: str) -> None:
    """Check that a voter names its damaged file twice, since the first refusal must free the address."""
    for _ in range(2):
        with pytest.raises(DataError) as raised:
            RaftJournal([address], address, TOKEN, folder)
        assert str(raised.value).startswith(f"{folder / file} is damaged (")
        assert f"while both other voters are up, move {folder} away" in str(raised.value)
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "content",
    [b"", SNAPSHOT[:-1], bytes(len(SNAPSHOT)), SNAPSHOT[:-5] + bytes(5)],
    ids=["empty", "short", "zeros", "end of zeros"],
)
def test_a_voter_with_a_damaged_snapshot_does_not_start_and_names_the_file(
    address: str, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "state").write_bytes(content)
    refused(address, tmp_path, "state")
    assert (tmp_path / "state").read_bytes() == content


@pytest.mark.parametrize("damage", ["empty", "zeros", "size"])
def test_a_voter_with_a_damaged_log_does_not_start_and_names_the_file(
    address: str, tmp_path: Path, damage: str
) -> None:
    with voter(address, tmp_path) as journal:
        append(journal, "one")
    log = tmp_path / "log"
    content = log.read_bytes()
    log.write_bytes({"empty": b"", "zeros": content[:40] + bytes(len(content) - 40),
                     "size": content[:40] + struct.pack("<I", 7) + content[44:]}[damage])  # fmt: skip
    refused(address, tmp_path, "log")
    gc.collect()  # pysyncobj leaves the damaged file open, which only this module permits


def test_a_voter_whose_snapshot_is_missing_does_not_start(address: str, tmp_path: Path) -> None:
    with voter(address, tmp_path) as journal:
        append(journal, "one", "two")
        compact(journal, tmp_path)
        wait_until(lambda: journal._voter._getRaftLogSize() == 2)
    with voter(address, tmp_path) as journal:
        assert whys(journal) == ["one", "two"]
    (tmp_path / "state").unlink()
    refused(address, tmp_path, "log")


def test_a_voter_killed_before_it_cut_its_log_keeps_the_entries_after_the_snapshot(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with voter(address, tmp_path) as journal:
        append(journal, "one", "two")
        monkeypatch.setattr(journal._voter, "_SyncObj__deleteEntriesTo", lambda _: None)  # as if it were killed before
        compact(journal, tmp_path)
        append(journal, "three")
    with voter(address, tmp_path) as journal:
        assert whys(journal) == ["one", "two", "three"]
        append(journal, "four")
    with voter(address, tmp_path) as journal:
        assert whys(journal) == ["one", "two", "three", "four"]


def test_a_snapshot_is_on_the_disk_before_it_has_its_name_and_before_the_log_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synchronized: list[tuple[Path, list[str]]] = []
    fsync = os.fsync

    def recorded(descriptor: int) -> None:
        fsync(descriptor)
        synchronized.append(
            (Path(f"/proc/self/fd/{descriptor}").readlink(), [path.name for path in tmp_path.iterdir()])
        )

    monkeypatch.setattr(os, "fsync", recorded)
    sizes: list[int] = []
    writer = SnapshotWriter(sizes.append)
    file = tmp_path / "state"
    writer.begin(file, (REGULAR, 9, 1), (REGULAR, 8, 1), RaftState().snapshot())
    seen = [writer.state()]
    while seen[-1] == SERIALIZER_STATE.SERIALIZING:
        seen.append(writer.state())
        before = list(synchronized)
    assert seen[-1] == SERIALIZER_STATE.SUCCESS
    assert before == synchronized
    assert synchronized == [(tmp_path / "state.draft", ["state.draft"]), (tmp_path, ["state"])]
    assert file.read_bytes()[-sizes[0] :] == RaftState().dump()

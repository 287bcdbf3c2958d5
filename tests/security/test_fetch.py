"""A hostile cluster: what `chimera fetch` gets writes nothing outside of its folder, and no more than was allowed."""

from __future__ import annotations

import io
import os
import tarfile
import threading
import unicodedata
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera.core.errors import ChimeraError, ConfigurationError, RunError
from chimera.jobs.client.client import Client
from chimera.jobs.client.handle import JobHandle
from chimera.jobs.driver.results import read_results
from chimera.jobs.files import tar
from chimera.jobs.files.content_store import check_manifest
from chimera.jobs.files.tar import unpack


def member(name: str, content: bytes = b"evil", *, kind: bytes = tarfile.REGTYPE, **fields: object) -> bytes:
    """Return one member of an archive, whatever an archive is not to hold."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info.tobuf(tarfile.PAX_FORMAT) + content + bytes(-len(content) % 512)


def extended(records: bytes, size: int | None = None) -> bytes:
    """Return an extended header, which may lie about its size."""
    return member("x", records, kind=tarfile.XHDTYPE, size=len(records) if size is None else size)


def archive(*members: bytes) -> io.BytesIO:
    """Return an archive of these."""
    return io.BytesIO(b"".join(members) + bytes(1024))


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A folder beside the fetched one, which is as it was afterwards."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "mine").write_text("mine")
    yield folder
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"mine": "mine"}
    assert {path.name for path in tmp_path.iterdir()} <= {"outside", "there", "link"}


_LINK = {"content": b"", "kind": tarfile.SYMTYPE, "linkname": "../outside"}
ATTACKS: dict[str, Callable[[Path], list[bytes]]] = {
    "absolute": lambda folder: [member(f"{folder}/x")],
    "above": lambda folder: [member("../outside/x")],
    "above, deep": lambda folder: [member("a/../../outside/x")],
    "a folder above": lambda folder: [member("../outside/d", b"", kind=tarfile.DIRTYPE)],
    "through a link": lambda folder: [member("a", **_LINK), member("a/x")],
    "through two links": lambda folder: [
        member("a", b"", kind=tarfile.SYMTYPE, linkname="."),
        member("a/b", **_LINK),
        member("b/x"),
    ],
    "a hard link": lambda folder: [
        member("a", b"", kind=tarfile.LNKTYPE, linkname=f"{folder}/mine"),
        member("a", b"changed"),
    ],
    "a link to a file": lambda folder: [
        member("a", b"", kind=tarfile.SYMTYPE, linkname=f"{folder}/mine"),
        member("a", b"changed"),
    ],
    "a pipe": lambda folder: [member("a", b"", kind=tarfile.FIFOTYPE)],
    "a device": lambda folder: [member("a", b"", kind=tarfile.CHRTYPE, devmajor=1, devminor=5)],
    "an unknown kind": lambda folder: [member("a", kind=b"Z")],
    "a sparse file": lambda folder: [member("a", kind=tarfile.GNUTYPE_SPARSE)],
    "a sparse file of pax": lambda folder: [extended(b"22 GNU.sparse.major=1\n"), member("a")],
    "a path in a pax header": lambda folder: [extended(b"21 path=../outside/x\n"), member("a")],
    "a global header": lambda folder: [member("g", b"21 path=../outside/x\n", kind=tarfile.XGLTYPE), member("a")],
    "a long name of GNU": lambda folder: [member("L", b"../outside/x\0", kind=tarfile.GNUTYPE_LONGNAME), member("a")],
    "a header that is never over": lambda folder: [extended(b"", size=1 << 40)],
    "headers upon headers": lambda folder: [extended(b"8 path=\n")] * 5000,
    "records that lead nowhere": lambda folder: [extended(b"0 a=\n"), member("a")],
    "a negative size": lambda folder: [extended(b"", size=-512)],
    "a folder with content": lambda folder: [member("d", kind=tarfile.DIRTYPE)],
    "twice the same": lambda folder: [member("a"), member("a", b"again")],
    "a drive": lambda folder: [member("C:x")],
    "a backslash": lambda folder: [member("..\\outside\\x")],
    "an escape": lambda folder: [member("\x1b]0;owned\x07")],
    "an escape of one character": lambda folder: [member("\x9b31m")],
    "letters turned round": lambda folder: [member("a\u202etxt.exe")],
    "no name": lambda folder: [member("")],
    "a long name": lambda folder: [member("a" * 300)],
    "the mark": lambda folder: [member(".fetched")],
    "a file below a file": lambda folder: [member("a"), member("a/b")],
    "a file for a folder": lambda folder: [member("a/b"), member("a")],
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_archive_with_anything_but_files_and_folders_below_is_refused(
    attack: str, tmp_path: Path, outside: Path
) -> None:
    with pytest.raises(ChimeraError) as told:
        unpack(archive(*ATTACKS[attack](outside)), tmp_path / "there")
    assert "\n" not in str(told.value)
    assert all(unicodedata.category(letter) != "Cc" for letter in str(told.value))
    assert not any(path.is_symlink() for path in (tmp_path / "there").rglob("*"))


_PARTS = st.sampled_from(["..", ".", "", "a", "b", "link", "\0", "\x1b", "é", "C:", "x" * 300, "\udcff"]) | st.text(
    max_size=4
)


@given(paths=st.lists(st.lists(_PARTS, max_size=6).map("/".join), max_size=4))
def test_no_path_leads_out(tmp_path_factory: pytest.TempPathFactory, paths: list[str]) -> None:
    top = tmp_path_factory.mktemp("top")
    (top / "outside").mkdir()
    there = top / "there"
    unpack(archive(), there)
    (there / "link").symlink_to("../outside")
    members = []
    for path in paths:
        info = tarfile.TarInfo(path)
        info.size = 4
        members.append(info.tobuf(tarfile.PAX_FORMAT, errors="surrogateescape") + b"evil" + bytes(508))
    try:
        names = unpack(archive(*members), there)
    except ChimeraError:
        names = []
    assert not any((top / "outside").iterdir())
    assert {path.name for path in top.iterdir()} == {"outside", "there"}
    for name in names:
        assert (there / name).resolve().is_relative_to(there.resolve())
        assert (there / name).read_bytes() == b"evil"


@pytest.mark.parametrize("name", ["link/x", "link", "deep/link/x"])
def test_links_that_are_there_are_not_followed(name: str, tmp_path: Path, outside: Path) -> None:
    there = tmp_path / "there"
    unpack(archive(member("deep/a")), there)
    for link in (there / "link", there / "deep" / "link"):
        link.symlink_to(outside)
    if name == "link":  # it is replaced itself
        assert unpack(archive(member(name)), there) == [name]
        assert not (there / name).is_symlink()
    else:
        with pytest.raises(ConfigurationError, match="cannot be written"):
            unpack(archive(member(name)), there)


def test_a_file_with_another_name_elsewhere_keeps_its_content_there(tmp_path: Path, outside: Path) -> None:
    there = tmp_path / "there"
    unpack(archive(), there)
    os.link(outside / "mine", there / "a")
    unpack(archive(member("a")), there)
    assert (there / "a").read_bytes() == b"evil"


def test_files_that_were_not_fetched_are_not_written_over(outside: Path) -> None:
    with pytest.raises(ConfigurationError, match="holds files that were not fetched"):
        unpack(archive(member("mine")), outside)


def test_a_fetched_folder_is_fetched_again(tmp_path: Path) -> None:
    for content in (b"first", b"second"):
        assert unpack(archive(member("d/a", content)), tmp_path / "there") == ["d/a"]
    assert (tmp_path / "there" / "d" / "a").read_bytes() == b"second"


def test_files_are_their_owners_alone_and_run_nothing(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        unpack(archive(member("d/a", mode=0o6777, uid=4321)), tmp_path / "new" / "there")
    finally:
        os.umask(before)
    there = tmp_path / "new" / "there"
    assert {oct(path.stat().st_mode & 0o7777) for path in (there.parent, there, there / "d")} == {"0o700"}
    assert (there / "d" / "a").stat().st_mode & 0o7777 == 0o600
    assert (there / "d" / "a").stat().st_uid == os.getuid()


def test_the_bytes_are_limited_before_any_is_written(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="max-gib"):
        unpack(archive(member("a", bytes(600)), member("b", bytes(600))), tmp_path / "there", max_bytes=1000)
    assert not (tmp_path / "there" / "b").exists()
    with pytest.raises(ConfigurationError, match="the disk of"):
        unpack(archive(member("a", size=1 << 60)), tmp_path / "too", max_bytes=1 << 62)


def test_the_files_and_folders_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tar, "MAX_FILES", 10)
    for members in ([member(f"f{i}") for i in range(11)], [member("a/" * 10 + "b")]):
        with pytest.raises(RunError, match="too many"):
            unpack(archive(*members), tmp_path / f"there{len(members)}")


@pytest.mark.parametrize("path", ["a\x9b31m", "a\u202eb", "C:b", "a\u2028b", "/etc/x", "a/../../b", "a\ud800"])
def test_paths_of_submitted_files_keep_to_the_same_rule(path: str) -> None:
    with pytest.raises(ConfigurationError):
        check_manifest([path])


class Hostile(BaseHTTPRequestHandler):
    """Plays a cluster for jobs, with an archive of its own for every run."""

    body = b""

    def do_GET(self) -> None:
        """Answer with the archive."""
        self.send_response(200)
        self.send_header("Content-Type", "application/x-tar")
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def cluster() -> Iterator[Client]:
    """Return a client of a hostile cluster."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hostile)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield Client(lambda: f"http://127.0.0.1:{server.server_port}", "token")
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_hostile_cluster_writes_nothing_outside(
    cluster: Client, tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for attack in ("through two links", "a hard link", "above", "a path in a pax header"):
        monkeypatch.setattr(Hostile, "body", archive(*ATTACKS[attack](outside)).getvalue())
        with pytest.raises(RunError):
            JobHandle(cluster, "1").fetch(tmp_path / "there")
    monkeypatch.setattr(Hostile, "body", archive(member("a/b")).getvalue())
    assert (JobHandle(cluster, "1").fetch(tmp_path / "there") / "a" / "b").read_bytes() == b"evil"


@pytest.mark.parametrize("number", ["../../../outside/x", "/outside", "", "1\n"])
def test_a_cluster_does_not_choose_the_folder_by_the_number_of_a_job(
    number: str, cluster: Client, tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there" / "here").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "there" / "here")
    monkeypatch.setattr(Hostile, "body", archive(member("a")).getvalue())
    with pytest.raises(RunError, match="not a number"):
        JobHandle(cluster, number).fetch()


def test_results_nested_without_end_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "results.msgpack").write_bytes(b"\x91" * 1_000_000)
    with pytest.raises(RunError, match="cannot be read"):
        read_results(tmp_path)

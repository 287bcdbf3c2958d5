"""Archives of run folders contain the files, growing files up to their last complete line."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera.core.errors import RunError
from chimera.jobs.files.tar import pack, unpack


@given(st.dictionaries(st.sampled_from(["a", "b.bin", "deep/c", "deep/er/d"]), st.binary(max_size=3000)))
def test_files_are_unpacked_unchanged(tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]) -> None:
    here, there = tmp_path_factory.mktemp("here"), tmp_path_factory.mktemp("there")
    for name, content in files.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_bytes(content)
    names = unpack(io.BytesIO(b"".join(pack(here, {}))), there)
    assert {name: (there / name).read_bytes() for name in names} == files


@given(st.lists(st.binary(min_size=1, max_size=50).filter(lambda line: b"\n" not in line)), st.booleans())
def test_only_complete_lines_are_packed(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], half: bool
) -> None:
    here, there = tmp_path_factory.mktemp("here"), tmp_path_factory.mktemp("there")
    whole = b"".join(line + b"\n" for line in lines)
    (here / "metrics.jsonl").write_bytes(whole + b'{"rou' * half)
    (here / "weights.part").write_bytes(b"half of it")
    assert unpack(io.BytesIO(b"".join(pack(here, {"log": here / "no log yet"}))), there) == ["metrics.jsonl"]
    assert (there / "metrics.jsonl").read_bytes() == whole


def test_a_file_that_is_truncated_meanwhile_keeps_the_archive_valid(tmp_path: Path) -> None:
    (tmp_path / "trace").write_bytes(bytes([1]) * 3_000_000)
    parts = pack(tmp_path, {})
    head = next(parts), next(parts)
    (tmp_path / "trace").write_bytes(b"")
    names = unpack(io.BytesIO(b"".join((*head, *parts))), tmp_path / "there")
    assert names == ["trace"]
    assert (tmp_path / "there" / "trace").stat().st_size == 3_000_000


@pytest.mark.parametrize("name", ["../outside", "deep/../../outside"])
def test_no_member_leaves_the_folder(tmp_path: Path, name: str) -> None:
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w") as tar:
        tar.addfile(tarfile.TarInfo(name))
    body.seek(0)
    with pytest.raises(RunError):
        unpack(body, tmp_path / "there")
    assert not (tmp_path / "outside").exists()


def test_a_truncated_archive_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(5000))
    whole = b"".join(pack(tmp_path, {}))
    with pytest.raises(RunError, match="did not arrive completely"):
        unpack(io.BytesIO(whole[:2000]), tmp_path / "there")

"""A job that changes its own files in place changes no file of another job."""

from __future__ import annotations

from pathlib import Path

import pytest

from chimera.jobs.files.content_store import ContentStore, hash_file, verify


@pytest.mark.parametrize("size", [10, 3 << 20])
def test_data_written_by_a_job_do_not_reach_other_jobs(size: int, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(size))
    manifest = {"deep/data": hash_file(tmp_path / "data")}
    contents = ContentStore(tmp_path / "files")
    contents.add(manifest["deep/data"], [bytes(size)])
    contents.create_folder(manifest, tmp_path / "one")
    mine = tmp_path / "one" / "deep" / "data"
    mine.chmod(0o600)
    with mine.open("r+b") as file:
        file.write(b"poison")
    contents.create_folder(manifest, tmp_path / "two")
    assert not verify(manifest, tmp_path / "two")
    assert mine.stat().st_nlink == 1

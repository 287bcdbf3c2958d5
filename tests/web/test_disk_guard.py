"""The guard of a disk: it warns, and refuses new work below the space that is reserved for accepted jobs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.disk_kit import leave, small_disk

from chimera.core.errors import NoSpaceError
from chimera.web.disk_guard import DiskGuard


def test_new_work_is_refused_below_the_reserve_with_the_space_and_the_limit(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 16) as disk:
        guard = DiskGuard(disk)
        guard.check_submission()
        assert guard.warning() == ""
        with pytest.raises(NoSpaceError, match=r"16 MiB are left, the job needs 13 MiB, and 4 MiB are reserved"):
            guard.check_submission(13 << 20)
        leave(disk, 804 << 10)
        assert guard.warning() == "the disk is nearly full: 804 KiB are left"
        assert not guard.is_full()
        with pytest.raises(
            NoSpaceError, match=r"nearly full: 804 KiB are left, and 4 MiB are reserved for accepted jobs"
        ):
            guard.check_submission()
        leave(disk, 0)
        assert guard.is_full()


def test_files_that_are_being_written_count_with_their_missing_bytes(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 16) as disk:
        guard = DiskGuard(disk)
        with guard.announced(7 << 20) as wrote:
            expected = (
                r"16 MiB are left, the job needs 6 MiB, files that are being sent need 7 MiB, and 4 MiB are reserved"
            )
            with pytest.raises(NoSpaceError, match=expected), guard.announced(6 << 20):
                raise AssertionError
            with guard.announced(5 << 20):
                pass
            (disk / "part").write_bytes(bytes(6 << 20))
            wrote(6 << 20)  # the part counts once
            guard.check_submission(5 << 20)
            with pytest.raises(
                NoSpaceError, match="10 MiB are left, the job needs 6 MiB, files that are being sent need 1 MiB"
            ):
                guard.check_submission(6 << 20)
        guard.check_submission(6 << 20)


def test_an_unknown_space_is_enough(tmp_path: Path) -> None:
    guard = DiskGuard(tmp_path / "missing")
    guard.check_submission(1 << 40)
    assert (guard.warning(), guard.is_full()) == ("", False)

"""Uploads of several clients at a time share the free space of the disk."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.disk_kit import small_disk

from chimera.core.errors import DataError, NoSpaceError
from chimera.jobs.daemon.app import _store
from chimera.jobs.files.content_store import ContentStore
from chimera.jobs.store.records import File
from chimera.web.disk_guard import DiskGuard

_MIB = 1 << 20


def parts(fill: bytes, count: int) -> Iterator[bytes]:
    return (fill * _MIB for _ in range(count))


def file(fill: bytes, count: int) -> File:
    return File(hashlib.sha256(fill * (count * _MIB)).hexdigest(), count * _MIB)


def test_an_upload_that_begins_during_another_one_leaves_the_reserve(tmp_path: Path) -> None:
    """The disk has 16 MiB, of which 4 are reserved: one file of 7 MiB fits, and two do not."""
    with small_disk(tmp_path / "disk", 16) as disk:
        contents, guard = ContentStore(disk / "files"), DiskGuard(disk)
        first, second = file(b"a", 7), file(b"b", 7)
        refused: list[str] = []

        def first_parts() -> Iterator[bytes]:
            for number, part in enumerate(parts(b"a", 7)):
                if number in (0, 3):
                    with pytest.raises(NoSpaceError) as caught:
                        _store(contents, guard, second, parts(b"b", 7))
                    refused.append(str(caught.value))
                if number == 1:
                    _store(contents, guard, file(b"c", 4), parts(b"c", 4))  # this one fits beside the first
                yield part

        _store(contents, guard, first, first_parts())
        assert [text.partition("files that are being sent need ")[2][:5] for text in refused] == ["7 MiB", "4 MiB"]
        assert contents.has(first)
        assert not contents.has(second)


def test_an_upload_that_fails_gives_its_space_back(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 16) as disk:
        contents, guard = ContentStore(disk / "files"), DiskGuard(disk)
        for sent in (3, 8):
            with pytest.raises(DataError):
                _store(contents, guard, file(b"a", 7), parts(b"a", sent))
        _store(contents, guard, file(b"a", 11), parts(b"a", 11))

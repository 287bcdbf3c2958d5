"""Random access to gzip files."""

from __future__ import annotations

import gzip
import zlib
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera.data.text.reading.seekable_gzip import SeekableGzip
from data.text.texts import written

PLACES = st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 900)), max_size=12)


@given(st.lists(st.binary(max_size=2000), max_size=4), PLACES, st.integers(1, 300), st.integers(0, 3))
def test_the_bytes_at_an_offset_do_not_depend_on_earlier_reads(
    tmp_path_factory: pytest.TempPathFactory,
    members: list[bytes],
    places: list[tuple[int, int]],
    spacing: int,
    zeros: int,
) -> None:
    packed = b"".join(gzip.compress(member) + bytes(zeros) for member in members)
    whole = b"".join(members)
    with closing(SeekableGzip(str(written(tmp_path_factory.mktemp("gz") / "a.gz", packed)), spacing)) as file:
        for place, size in places:
            assert file.read(place, size) == whole[place : place + size]
        assert file.size() == len(whole)
        assert file.read(0, len(whole)) == whole


def test_a_seek_back_reads_a_small_part_of_the_file(tmp_path: Path) -> None:
    counts = Path("/proc/self/io")
    if not counts.exists():
        pytest.skip("this system has no /proc/self/io")

    def bytes_read() -> int:
        return int(counts.read_text().split()[1])

    text = np.random.default_rng(0).integers(97, 123, 8 << 20, np.uint8).tobytes()
    path = written(tmp_path / "a.gz", gzip.compress(text, compresslevel=1))
    with closing(SeekableGzip(str(path), spacing=1 << 18)) as file:
        assert file.size() == len(text)
        before = bytes_read()
        for part in (0.5, 0.9, 0.1):
            place = int(part * len(text))
            assert file.read(place, 1000) == text[place : place + 1000]
        assert bytes_read() - before < 0.15 * path.stat().st_size


def test_incomplete_gzip_files_are_rejected(tmp_path: Path) -> None:
    packed = gzip.compress(bytes(97 + i * i % 26 for i in range(9999)))
    for content in (packed[:-20], packed[:-1], b"not packed", packed + b"no padding"):
        with (
            closing(SeekableGzip(str(written(tmp_path / "a.gz", content)))) as file,
            pytest.raises((EOFError, zlib.error)),
        ):
            file.size()

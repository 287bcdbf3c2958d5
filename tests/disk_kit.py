"""Small disks for tests: real file systems that can be filled."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """Mount a file system of this size at a new folder."""
    folder.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small file system needs root and the command mount: run the tests as root")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", folder], check=False)
    if mounted.returncode:
        pytest.skip("mounting was refused: run the tests as root of a machine, or in a container with CAP_SYS_ADMIN")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def leave(folder: Path, free: int) -> Path:
    """Write to the disk of a folder until so many bytes are free; return the file that takes the space."""
    file = folder / "ballast"
    with file.open("ab", buffering=0) as opened:
        while (more := shutil.disk_usage(folder).free - free) > 0:
            opened.write(bytes(min(more, 1 << 20)))
    return file


def fill(folder: Path) -> Path:
    """Fill the disk of a folder; return the file that does."""
    file = folder / "fill"
    with file.open("wb", buffering=0) as opened:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while opened.write(bytes(size)) == size:
                    pass
            except OSError:
                continue
    return file

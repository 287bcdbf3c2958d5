"""Download of a run's files. Names are from a fixed list, and sizes are bounded before anything is read."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from chimera.core.errors import ConfigurationError
from chimera.core.private import make_folder, opener
from chimera.training.artifacts.growing_file import segments_of
from chimera.training.artifacts.location import folder_of
from chimera.training.artifacts.object_store import CHECKPOINTS, ObjectStore, StoreError

_MIB, _GIB = 1 << 20, 1 << 30
_MAX_BYTES = {
    "experiment.toml": 16 * _MIB,
    "environment.json": 16 * _MIB,
    "summary.json": 256 * _MIB,
    "data.json": 256 * _MIB,
    "signature.json": 256 * _MIB,
    "vocabulary.txt": _GIB,
    "stop_words.txt": 16 * _MIB,
    "metrics.jsonl": 4 * _GIB,
    "events.jsonl": 4 * _GIB,
    "trace.jsonl": 64 * _GIB,
    "embeddings.csv": 256 * _GIB,
    "weights.safetensors": 1024 * _GIB,
    "report.html": _GIB,
    "grid.json": 256 * _MIB,
    "comparison.json": 256 * _MIB,
}
"""The files that are downloaded, and the largest size of each. The free space of the disk is a limit, too."""
COMPARED = ("experiment.toml", "summary.json", "metrics.jsonl", "events.jsonl", "report.html")
"""The files of a run that a comparison reads, or links to."""
REPORTED = (
    *("experiment.toml", "environment.json", "summary.json", "data.json", "vocabulary.txt", "stop_words.txt"),
    *("metrics.jsonl", "events.jsonl", "trace.jsonl", "embeddings.csv"),
)
"""The files from which a report is made."""


def download(store: ObjectStore, names: Iterable[str], folder: Path) -> None:
    """Download the files with these names that the store has.

    Raises
    ------
    StoreError : the store cannot be read, or a file is too large.
    """
    sizes = store.sizes()
    for name in names:
        segments = segments_of(sizes, name)
        size = sum(sizes[segment] for segment in segments) if segments else sizes.get(name)
        if size is None:
            continue
        _check_size(store, name, size, _MAX_BYTES[name], folder)
        with _private(folder / name) as path:
            for part in segments or [name]:
                store.get(part, path, sizes[part])


def download_checkpoint(store: ObjectStore, folder: Path) -> None:
    """Download the newest checkpoint, if there is one."""
    names = store.checkpoints()
    if names:
        name = f"{CHECKPOINTS}/{names[-1]}"
        size = store.sizes(CHECKPOINTS)[names[-1]]
        _check_size(store, name, size, _MAX_BYTES["weights.safetensors"], folder)
        make_folder(folder / CHECKPOINTS)
        with _private(folder / name) as path:
            store.get(name, path, size)


@contextmanager
def local_copy(location: str | os.PathLike[str], names: Iterable[str]) -> Iterator[Path]:
    """Yield the folder of a run on this machine: ``location``, or a copy of these files, which is removed at the end.

    Raises
    ------
    ConfigurationError : there is no run in the store.
    """
    folder = folder_of(location)
    if folder is not None:
        yield folder
        return
    store = ObjectStore(str(location))
    with tempfile.TemporaryDirectory(prefix="chimera-run-") as private:
        copy = Path(private) / store.name
        make_folder(copy)
        download(store, names, copy)
        if not any(copy.iterdir()):
            raise ConfigurationError(f"there is no run in {store.url}")
        try:
            yield copy
        except ConfigurationError as error:
            if str(copy) not in str(error):
                raise
            raise ConfigurationError(str(error).replace(str(copy), store.url)) from error


@contextmanager
def _private(path: Path) -> Iterator[Path]:
    """Create a file for its owner only; remove it if the block raises."""
    os.close(opener(str(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    try:
        yield path
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _check_size(store: ObjectStore, name: str, size: int, most: int, folder: Path) -> None:
    if size > most:
        raise StoreError(f"{store.url}/{name} has {size:,} bytes; at most {most:,} are read")
    free = shutil.disk_usage(folder).free
    if size > free:
        raise StoreError(
            f"{store.url}/{name} has {size:,} bytes, but {folder} has {free:,} bytes free: set TMPDIR to a larger folder"
        )

"""A copy of the files of a run in an object store, for a page that follows the run."""

from __future__ import annotations

from pathlib import Path

from chimera.training.artifacts.growing_file import segments_of
from chimera.training.artifacts.object_store import ObjectStore
from chimera.web.live.copied import CopiedRun
from chimera.web.live.description import SMALL
from chimera.web.live.pieces import FILES

EVERY_S = 5.0
"""Seconds between two requests for the list of the store's files."""
MAX_BYTES = 1 << 30
"""Maximum size of the copy of a file, in bytes; the rest is not followed."""


class StoreCopy(CopiedRun):
    """A copy of a run in an object store: settings, results and growing files. It downloads new data only.

    Parameters
    ----------
    store : the folder of the run in its store.
    folder : an existing private folder for the copy.
    """

    def __init__(self, store: ObjectStore, folder: Path) -> None:
        super().__init__(folder, EVERY_S)
        self._store = store
        self._sizes: dict[str, int] = {}  # of the parts that were downloaded

    def download(self) -> None:
        """Download new data.

        Raises
        ------
        StoreError : the store cannot be read.
        """
        sizes = self._store.sizes()
        for name in (*SMALL, *(f"{file}.jsonl" for file in FILES)):
            parts = segments_of(sizes, name) or ([name] if name in sizes else [])
            self._update(self._folder / name, {part: sizes[part] for part in parts})

    def _update(self, file: Path, parts: dict[str, int]) -> None:
        """Append or replace parts that changed; those before them stay."""
        begin, changed = 0, False
        for part, size in parts.items():
            changed = changed or self._sizes.get(part) != size
            if begin + size > MAX_BYTES:
                return
            if changed:
                partial = file.with_name(f"{part}.part")
                partial.unlink(missing_ok=True)
                partial.touch(0o600)
                self._store.get(part, partial, size)
                with file.open("r+b" if file.exists() else "wb") as whole:
                    whole.seek(begin)
                    whole.write(partial.read_bytes())
                    whole.truncate()
                partial.unlink()
                self._sizes[part] = size
            begin += size

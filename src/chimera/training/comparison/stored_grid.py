"""A comparison whose files are in an object store: its cells upload their own runs, and this process its other files."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterable
from pathlib import Path

from chimera.core.errors import ConfigurationError
from chimera.core.private import make_folder
from chimera.training.artifacts.download import COMPARED, download
from chimera.training.artifacts.object_store import ObjectStore, StoreError

GRID, RESULT = "grid.json", "comparison.json"


class StoredGrid:
    """The files of a comparison in a store, and copies of those that its tables and its page need.

    Parameters
    ----------
    url : the folder in the store.

    Attributes
    ----------
    url : the argument, in one form.
    folder : the copies on this machine, which exist as long as this object.

    Raises
    ------
    ConfigurationError : no library for such URLs is installed.
    """

    def __init__(self, url: str) -> None:
        self._store = ObjectStore(url)
        self.url = self._store.url
        private = Path(tempfile.mkdtemp(prefix="chimera-compare-"))
        weakref.finalize(self, shutil.rmtree, private, ignore_errors=True)
        self.folder = private / self._store.name
        make_folder(self.folder)

    def begin(self, *, resume: bool) -> None:
        """Check that the store has no files at this URL, or the comparison that resumes; fetch the settings of its cells.

        Raises
        ------
        ConfigurationError : the URL has other files.
        StoreError : the store cannot be read.
        """
        names = self._store.sizes()
        if names and not resume:
            raise ConfigurationError(f"{self.url} is not empty: resume its comparison, or choose another folder")
        if names and GRID not in names:
            raise ConfigurationError(f"{self.url} holds no comparison to resume: choose another folder")
        download(self._store, [GRID], self.folder)

    def fetch_result(self) -> None:
        """Fetch ``comparison.json``, if there is one."""
        download(self._store, [RESULT], self.folder)

    def fetch(self, cells: Iterable[str]) -> None:
        """Fetch the results of the cells that have results.

        Raises
        ------
        ConfigurationError : the name of a cell cannot be the name of a folder.
        StoreError : the store cannot be read.
        """
        for name in cells:
            if "/" in name or name in ("", ".", ".."):
                raise ConfigurationError(f"{self.url} has a run {name!r}, which is no name of a folder")
            folder = self.folder / name
            make_folder(folder)
            for path in folder.iterdir():
                path.unlink()
            download(ObjectStore(f"{self.url}/{name}"), COMPARED, folder)

    def upload(self) -> None:
        """Upload the files of the comparison itself, with the logs of its cells.

        Raises
        ------
        StoreError : the store does not accept them. Since the runs are in the store, ``resume`` repeats the upload.
        """
        try:
            for path in sorted(self.folder.iterdir()):
                if path.is_file():
                    self._store.put_file(path, path.name)
        except StoreError as error:
            raise StoreError(f"{error}; runs that have ended are in the store, and --resume continues") from error

"""A run whose files are in an object store: it works in a private folder on this machine, and uploads what it writes."""

from __future__ import annotations

import secrets
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from chimera.core.errors import ConfigurationError
from chimera.core.private import make_folder
from chimera.training.artifacts.download import download, download_checkpoint
from chimera.training.artifacts.growing_file import is_of
from chimera.training.artifacts.mirror import Mirror, StoreEvents
from chimera.training.artifacts.object_store import ObjectStore, StoreError
from chimera.training.progress.callback import Callback
from chimera.training.progress.history import FILES as GROWING
from chimera.training.progress.history import History

_RESUMED = ("signature.json", *GROWING)


class StoredRun:
    """The files of one run, in the store and on this machine.

    Parameters
    ----------
    url : the folder in the store.
    resumes : whether the run resumes from a checkpoint in it.

    Attributes
    ----------
    folder : the folder in which the run writes; it exists during the run only.
    location : the URL; the folder on this machine if its files could not be uploaded.

    Raises
    ------
    ConfigurationError : the store holds a run, and ``resumes`` is not set; or no library for such URLs is installed.
    StoreError : the store cannot be read.
    """

    def __init__(self, url: str, *, resumes: bool) -> None:
        self._store, self._resumes = ObjectStore(url), resumes
        if not resumes:
            self._check_is_new(self._store.sizes())
        self._private = Path(tempfile.gettempdir()) / f"chimera-run-{secrets.token_hex(8)}"
        self.folder = self._private / self._store.name
        self.location = self._store.url
        self._mirror: Mirror | None = None  # while the run records

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Create the folder, with the files of the run that resumes; upload what the run wrote, and remove it at the end.

        Raises
        ------
        StoreError : the store cannot be read. If it does not accept all files, the folder stays, and a warning names it.
        """
        make_folder(self.folder)
        try:
            if self._resumes:
                download(self._store, _RESUMED, self.folder)
                download_checkpoint(self._store, self.folder)
            yield
        except BaseException as error:
            if self._mirror is not None:
                self._leave(self._mirror)
            self._check_names_no_private_file(error)
            raise
        finally:
            if self.location == self._store.url:
                shutil.rmtree(self._private, ignore_errors=True)

    def _check_names_no_private_file(self, error: BaseException) -> None:
        """Raise an error of the user again with URLs in place of the paths of files that are removed now."""
        removed = self.location == self._store.url
        if removed and isinstance(error, ConfigurationError) and str(self.folder) in str(error):
            raise ConfigurationError(str(error).replace(str(self.folder), self._store.url)) from error

    def _check_is_new(self, sizes: Mapping[str, int]) -> None:
        if "summary.json" in sizes or self._store.checkpoints():
            raise ConfigurationError(f"{self._store.url} already contains a run: resume it, or choose another folder")

    def begin(self) -> None:
        """Upload the files that describe the run; remove those of an earlier one that failed.

        Raises
        ------
        ConfigurationError : the store holds the results of a run that ended since then.
        StoreError : the store cannot be written.
        """
        if not self._resumes:
            sizes = self._store.sizes()
            self._check_is_new(sizes)  # another run may have ended here since the URL was chosen
            left = [name for name in sizes if is_of(name, ("data.json", *GROWING))]
            self._store.delete(left)
        for path in self.folder.iterdir():
            if path.is_file() and path.name not in GROWING:
                self._store.put_file(path, path.name)

    def recorded(self, history: History, callbacks: Sequence[Callback]) -> Callback:
        """Upload in the background from now on; return a callback that records failures of the store in ``history``."""
        self._mirror = Mirror(self._store, self.folder)
        return StoreEvents(self._mirror, history, callbacks)

    def finish(self) -> None:
        """Upload all files of a run that has ended.

        Raises
        ------
        StoreError : the store did not accept all of them.
        """
        mirror, self._mirror = self._mirror, None
        assert mirror is not None  # `recorded` was called
        try:
            mirror.end(finished=True)
        except StoreError as error:
            raise StoreError(f"the run ended, but {self._kept(mirror, str(error))}") from error
        except BaseException:
            self._mirror = mirror
            raise

    def _leave(self, mirror: Mirror) -> None:
        """Upload the files of a run that failed or was interrupted; warn if that fails."""
        try:
            mirror.end(finished=False)
        except (StoreError, KeyboardInterrupt) as error:
            warnings.warn(self._kept(mirror, str(error) or "interrupted"), RuntimeWarning, stacklevel=2)
            if isinstance(error, KeyboardInterrupt):
                raise

    def _kept(self, mirror: Mirror, reason: str) -> str:
        """Keep the folder, and return a text about its content."""
        self.location = str(self.folder)
        missing = ""
        with suppress(OSError):  # the folder itself may be the reason
            missing = ", ".join(mirror.missing())
        return (
            f"{missing or 'its files'} could not be uploaded to {self._store.url}: {reason}. All files are in "
            f"{self.folder}: copy them to the store, or resume with --out {self.folder} --resume"
        )

"""A folder in an object store, or in another remote file system that fsspec supports."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from chimera.core.errors import ChimeraError, ConfigurationError, MissingExtraError, UnavailableError
from chimera.training.artifacts.checkpoint import Checkpoints
from chimera.training.artifacts.location import store_url

CHECKPOINTS = "checkpoints"
"""The folder of checkpoints in the folder of a run."""
PART_BYTES = 16 << 20
"""Bytes that one request sends or receives, where the library lets the caller set it."""
_S3, _S3_PARTS = ("s3", "s3a"), 10_000
_EXTRAS = {"s3": ("s3fs", "s3"), "s3a": ("s3fs", "s3"), "gs": ("gcsfs", "gcs"), "gcs": ("gcsfs", "gcs")}
_WHOLE = frozenset({"abfs", "abfss", "az", "gcs", "gs", "oci", "oss", "s3", "s3a"})
"""File systems in which an uploaded object appears completely or not at all. A move there would be a copy."""
_USER = re.compile(r"//[^/@\s]*@")


class StoreError(UnavailableError):
    """A store that cannot be reached, or that refuses a request."""


class ObjectStore:
    """The folder of a run in a store.

    Parameters
    ----------
    url : URL of the folder, which `folder_of` accepted.

    Attributes
    ----------
    url : the argument, without a slash at its end.
    active_at : time of the last progress of a request, on the monotonic clock.

    Raises
    ------
    MissingExtraError : the library for this store is not installed.
    ConfigurationError : no library for such URLs is known.
    """

    def __init__(self, url: str) -> None:
        import fsspec

        self.url = store_url(url)
        self.active_at = time.monotonic()
        self._scheme = scheme = self.url.partition(":")[0]
        try:
            self._files, self._root = fsspec.core.url_to_fs(self.url)
        except ImportError as error:
            if scheme in _EXTRAS:
                raise MissingExtraError(f"the object store {self.url}", *_EXTRAS[scheme]) from error
            raise ConfigurationError(f"the object store {self.url} cannot be used: {_reason(error)}") from error
        except Exception as error:  # each library has errors of its own
            raise ConfigurationError(f"the object store {self.url} cannot be used: {_reason(error)}") from error
        protocol = self._files.protocol
        self._whole = not _WHOLE.isdisjoint((protocol,) if isinstance(protocol, str) else protocol)

    @property
    def name(self) -> str:
        """The last part of the URL, as the name of a local folder."""
        return re.sub(r"[^\w.-]+", "-", PurePosixPath(self.url).name).strip(".-") or "run"

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Return the bytes of each file in the folder, or in a folder below it, by name; empty if there is no such folder."""
        path = f"{self._root}/{folder}".rstrip("/")
        with self._errors("cannot be read"):
            self._files.invalidate_cache()  # another process may have written
            try:
                entries = self._files.ls(path, detail=True)
            except FileNotFoundError:
                return {}
        found = {str(entry["name"]): entry for entry in entries if entry["type"] == "file"}
        return {name.rpartition("/")[2]: int(entry["size"] or 0) for name, entry in found.items()}

    def checkpoints(self) -> list[str]:
        """Return the names of the checkpoints in the store, oldest first."""
        with self._errors("cannot be read"):
            self._files.invalidate_cache()
            return [path.rpartition("/")[2] for path in Checkpoints(f"{self.url}/{CHECKPOINTS}").paths()]

    def put_file(self, source: Path, name: str) -> None:
        """Upload a file, which gets its name only when it is complete. Large files are sent in parts."""
        from fsspec.callbacks import Callback

        options: dict[str, Any] = {"callback": Callback(hooks={"active": self._note})}
        if self._scheme in _S3:  # by default the library holds ten parts of 50 MiB in memory, and copies of them
            options |= {"chunksize": max(PART_BYTES, -(-source.stat().st_size // _S3_PARTS)), "max_concurrency": 4}
        self._put(name, lambda path: self._files.put_file(str(source), path, **options))

    def put(self, content: bytes, name: str) -> None:
        """Upload a small file."""
        self._put(name, lambda path: self._files.pipe_file(path, content))

    def _put(self, name: str, upload: Any) -> None:
        path = f"{self._root}/{name}"
        with self._errors(f"does not accept {name}"):
            if self._whole:
                upload(path)
            else:
                self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
                upload(f"{path}.part")
                self._files.mv(f"{path}.part", path)

    def get(self, name: str, target: Path, size: int) -> None:
        """Append the first ``size`` bytes of a file to another one on this machine.

        Raises
        ------
        StoreError : the file cannot be read, or is shorter.
        """
        with target.open("ab") as file:
            for begin in range(0, size, PART_BYTES):
                end = min(begin + PART_BYTES, size)
                with self._errors(f"cannot be read: {name}"):
                    part = self._files.cat_file(f"{self._root}/{name}", start=begin, end=end)
                if len(part) != end - begin:
                    raise StoreError(f"{self.url}/{name} does not have the {size:,} bytes that its store states")
                file.write(part)

    def delete(self, names: Iterable[str]) -> None:
        """Delete files; they may be gone already."""
        for name in names:
            with self._errors(f"does not delete {name}"):
                try:
                    self._files.rm_file(f"{self._root}/{name}")
                except FileNotFoundError:
                    continue

    def _note(self, *_: Any, **__: Any) -> None:
        self.active_at = time.monotonic()

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Raise errors of the library, which have no common class, as `StoreError`."""
        self._note()
        try:
            yield
            self._note()
        except ChimeraError:
            raise
        except Exception as error:
            raise StoreError(f"the object store {self.url} {what}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Return an error as one line, without the user of a URL in it."""
    line = _USER.sub("//...@", " ".join(str(error).split()))[:300]
    return line if line and not isinstance(error, KeyError) else f"{type(error).__name__} {line}".rstrip()

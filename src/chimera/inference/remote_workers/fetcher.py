"""Fetching of models from the coordinator's machine, for workers of this one. Only files that run no code are written."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from chimera.core.errors import ChimeraError, ConfigurationError
from chimera.core.private import make_folder, opener
from chimera.inference.remote_workers.cluster import ClusterAddress
from chimera.inference.remote_workers.models import FAILED, REQUESTED, FolderRequest, write_whole
from chimera.inference.remote_workers.protocol import FilesAnswer, FilesRequest, SharedFile

_POLL_S = 0.1
_RETRY_S = 0.5


class Fetcher:
    """Fetches the folders that the workers of this machine want, one after the other, in a thread.

    Parameters
    ----------
    cluster : the address of the cluster.
    machine : random text that identifies this program to the cluster.
    cache : folder of the fetched models. Files of earlier programs are kept.
    max_bytes : maximum size of all fetched models. The models that were not used for the longest time are deleted first.
    notify : called with a line of text for each model.
    """

    def __init__(
        self, cluster: ClusterAddress, machine: str, cache: Path, max_bytes: int, notify: Callable[[str], None]
    ) -> None:
        self._cluster, self._machine, self._cache = cluster, machine, cache
        self._max_bytes, self._notify = max_bytes, notify
        self._stopped = threading.Event()
        self._connection = cluster.connection()
        self._thread = threading.Thread(target=self._run, name="chimera-fetch", daemon=True)

    def start(self) -> None:
        """Start the thread. What an earlier program left unfinished is deleted."""
        make_folder(self._cache)
        for path in self._cache.iterdir():
            if not path.is_dir():
                path.unlink(missing_ok=True)
            elif path.name.startswith("."):
                shutil.rmtree(path, ignore_errors=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; a folder in progress is left unfinished."""
        self._stopped.set()
        self._connection.break_off("the machine ends")
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(_POLL_S):
            for file in sorted(self._cache.glob(f"*{REQUESTED}")):
                name = file.name.removesuffix(REQUESTED)
                try:
                    wanted = msgspec.json.decode(file.read_bytes(), type=FolderRequest)
                    self._fetch(wanted, name)
                except (ChimeraError, OSError, msgspec.MsgspecError) as error:
                    self._notify(f"a model cannot be fetched: {error}")
                    with contextlib.suppress(OSError):
                        write_whole(self._cache / f"{name}{FAILED}", " ".join(str(error).split()).encode())
                with contextlib.suppress(OSError):
                    file.unlink(missing_ok=True)
        self._connection.close()

    def _fetch(self, wanted: FolderRequest, name: str) -> None:
        files = self._answer(wanted, FilesRequest(self._machine, wanted.path)).files or []
        size = sum(each.size for each in files)
        if not files or len({each.name for each in files}) != len(files):
            raise ConfigurationError(f"the folder {wanted.path!r} has no files of a model that may be sent")
        self._make_room(size, wanted.path)
        draft = self._cache / f".{name}"
        shutil.rmtree(draft, ignore_errors=True)
        make_folder(draft)
        try:
            for each in files:
                self._fetch_file(wanted, each, draft / each.name)
            draft.rename(self._cache / name)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        self._notify(f"the model in {wanted.path!r} is fetched, with {size} bytes")

    def _fetch_file(self, wanted: FolderRequest, file: SharedFile, target: Path) -> None:
        digest, at = hashlib.sha256(), 0
        with open(target, "wb", opener=opener) as opened:
            while at < file.size:
                data = self._answer(wanted, FilesRequest(self._machine, wanted.path, file.name, at)).data
                if not data or at + len(data) > file.size:
                    raise ConfigurationError(f"{file.name} of {wanted.path!r} has changed while it was fetched")
                opened.write(data)
                digest.update(data)
                at += len(data)
        if digest.hexdigest() != file.sha256:
            raise ConfigurationError(f"{file.name} of {wanted.path!r} has another hash than the cluster has computed")

    def _answer(self, wanted: FolderRequest, request: FilesRequest) -> FilesAnswer:
        """Return the answer; repeat the request while there is none, because the network is down or hashes are computed."""
        while not self._stopped.is_set():
            found = self._cluster.files(self._connection, wanted.worker, request)
            if found is not None and (request.name or found.files is not None):
                return found
            self._stopped.wait(_RETRY_S if found is None else _POLL_S)
        raise ConfigurationError("the machine ends")

    def _make_room(self, size: int, path: str) -> None:
        if size > self._max_bytes:
            raise ConfigurationError(f"the model in {path!r} has {size} bytes: --fetch-gib permits {self._max_bytes}")
        folders = sorted(
            (each for each in self._cache.iterdir() if each.is_dir()), key=lambda each: each.stat().st_mtime
        )
        sizes = [sum(file.stat().st_size for file in each.iterdir()) for each in folders]
        while folders and sum(sizes) + size > self._max_bytes:
            shutil.rmtree(folders.pop(0))
            sizes.pop(0)
        free = shutil.disk_usage(self._cache).free
        if size > 0.9 * free:
            raise ConfigurationError(
                f"the model in {path!r} has {size} bytes, and the disk of {self._cache} has {free} free"
            )

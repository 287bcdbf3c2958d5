"""The models that a cluster of another machine names: which of them this machine loads, and where their files are.

A missing folder is fetched by the process of the machine (`chimera.inference.remote_workers.fetcher`), which has the connection
with the cluster. A worker asks for it by a file in the folder of fetched models.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from chimera.core.errors import ConfigurationError
from chimera.core.private import make_folder, write
from chimera.inference.models.spec import key_of
from chimera.inference.models.table import code_of
from chimera.inference.worker.computing import finished
from chimera.inference.worker.protocol import Assignment

Compute: TypeAlias = Callable[[str, dict[str, Any], Sequence[Any]], Iterator[tuple[str, Any]]]

_KINDS = frozenset({"transformers", "text-generation", "text-embeddings", "vllm"})
_FOLDERS = ("model", "base", "tokenizer")
REQUESTED, FAILED = ".wanted", ".failed"
_POLL_S = 0.05


class FolderRequest(Struct, frozen=True):
    """A folder that a worker needs.

    Attributes
    ----------
    path : the folder on the coordinator's machine.
    worker : name of the worker.
    """

    path: str
    worker: str


class ForeignModels:
    """The models of a cluster on another machine.

    Parameters
    ----------
    worker : name of the worker.
    code : whether to load models that run code of their own.
    cache : folder of fetched models; None: nothing is fetched.
    """

    def __init__(self, worker: str, *, code: bool, cache: Path | None) -> None:
        self._worker, self._code, self._cache = worker, code, cache
        self._original: dict[str, str] = {}

    def key(self, key: str) -> str:
        """Return the key by which the cluster knows a loaded model."""
        return self._original.get(key, key)

    def events(
        self, one: Assignment, compute: Compute, loaded: Sequence[str], is_wanted: Callable[[], bool]
    ) -> Iterator[tuple[str, Any]]:
        """Yield the events of a batch: those of the computing process, or the error of a model that is not loaded here.

        Parameters
        ----------
        compute : see `chimera.inference.worker.model_processes.ModelProcesses.compute`.
        loaded : keys of the models in memory.
        is_wanted : returns whether the batch was not taken back.
        """
        key = key_of(one.model)
        if key not in map(self.key, loaded):
            yield "loading", key
        try:
            table = self.table(one.model, is_wanted)
        except ConfigurationError as error:
            reason = f"the model cannot be loaded: {error}"
            yield "loaded", loaded
            yield "done", finished([{"error": reason}] * len(one.queries), 0.0)
        else:
            yield from compute(one.job, table, one.queries)

    def table(self, model: Mapping[str, Any], is_wanted: Callable[[], bool]) -> dict[str, Any]:
        """Return the table with paths of this machine. Wait until missing folders are fetched, while ``is_wanted``.

        Raises
        ------
        ConfigurationError : the model runs code, or a folder cannot be fetched.
        """
        local = dict(model)
        cache = self._cache
        if cache is not None:
            for key, path in folders_of(model):
                if not is_here(path):
                    local[key] = str(self._fetched(cache, path, str(model.get("stamp")), is_wanted))
        if not self._code and (runs := code_of(local)):
            raise ConfigurationError(
                f"the key {runs!r} of the model runs code, which the machine of {self._worker} refuses: "
                "start its 'chimera infer worker' with --code if you trust the cluster"
            )
        self._original[key_of(local)] = key_of(model)
        return local

    def _fetched(self, cache: Path, path: str, stamp: str, is_wanted: Callable[[], bool]) -> Path:
        name = hashlib.sha256(f"{path}\0{stamp}".encode()).hexdigest()[:32]
        folder, wanted, failed = cache / name, cache / f"{name}{REQUESTED}", cache / f"{name}{FAILED}"
        failed.unlink(missing_ok=True)
        waiting = threading.Event()
        while True:
            request_is_missing = (
                not wanted.exists()
            )  # read first: it is removed after the folder or the failure is written
            if folder.is_dir():
                break
            if failed.is_file():
                raise ConfigurationError(failed.read_text()[:1000])
            if not is_wanted():
                raise ConfigurationError("the batch was taken back")
            if request_is_missing:
                make_folder(cache)
                write_whole(wanted, msgspec.json.encode(FolderRequest(path, self._worker)))
            waiting.wait(_POLL_S)
        os.utime(folder)  # the folder that was not used for the longest time is deleted first
        return folder


def write_whole(file: Path, data: bytes) -> None:
    """Write a file so that another process reads all of it or nothing."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    write(draft, data)
    draft.replace(file)


def is_here(path: str) -> bool:
    """Return whether this machine has a folder."""
    return Path(path).is_dir()


def folders_of(model: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the keys of a table that name folders whose files run no code, and these folders."""
    trusts = any(model.get(key) for key in ("trust_remote_code", "pickled_weights"))
    for key in _FOLDERS if model.get("kind") in _KINDS and not trusts else ():
        path = model.get(key)
        if isinstance(path, str) and Path(path).is_absolute():
            yield key, path

"""Checkpoints: the complete state of a run in one safetensors file, written atomically."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError, RunError
from chimera.core.private import make_folder, write
from chimera.models.model import Model
from chimera.training.artifacts.frozen_part import check_frozen_part
from chimera.training.artifacts.tensor_file import read_tensors, write_tensors

_NAME = re.compile(r"round-(\d+)\.safetensors$")
_FORMAT = "chimera checkpoint 1"
_MARK, _LIKE_MARK = "__array__", re.compile("_*__array__")
_TREE = "tree"  # everything but the arrays, as MessagePack, which keeps infinities


@dataclass(frozen=True)
class Content:
    """The content of a checkpoint, which no code changes any more.

    Attributes
    ----------
    tree : everything but the arrays, as MessagePack.
    arrays : the arrays by the names that the tree has for them.
    """

    tree: bytes
    arrays: Mapping[str, NDArray[Any]]


def frozen(state: Mapping[str, Any]) -> Content:
    """Return the content of a nested mapping of arrays and plain values; arrays that could change later are copied."""
    arrays: dict[str, Any] = {}
    return Content(msgspec.msgpack.encode(_without_arrays(state, "", arrays)), arrays)


class Checkpoints:
    """The checkpoints of one run, in a folder of any file system that fsspec supports.

    Parameters
    ----------
    url : the folder, a path or a URL.
    keep : number of newest checkpoints to keep.
    """

    def __init__(self, url: str, keep: int = 2) -> None:
        import fsspec

        self._fs, self._root = fsspec.core.url_to_fs(url)
        self._keep = keep

    def write(self, round_: int, state: Mapping[str, Any]) -> str:
        """Write a nested mapping of arrays and plain values, as `write_content` does."""
        return self.write_content(round_, frozen(state))

    def write_content(self, round_: int, content: Content) -> str:
        """Write a checkpoint, delete old ones, and return the path.

        Raises
        ------
        RunError : the file cannot be written, for example on a full disk. Older checkpoints are unchanged.
        """
        path = f"{self._root}/round-{round_:09d}.safetensors"
        unfinished = f"{path}.part"
        try:
            self._begin(unfinished)
            with self._fs.open(unfinished, "wb") as file:
                tree = np.frombuffer(content.tree, np.uint8)
                write_tensors(file, {**content.arrays, _TREE: tree}, {"format": _FORMAT})
                self._synchronize(file)
            self._fs.mv(unfinished, path)
            self._synchronize_folder()
        except OSError as error:
            self._discard(unfinished)
            raise RunError(
                f"the checkpoint {path} cannot be written: {error.strerror or error}; {self._last_good()}"
            ) from error
        for old in [*self.paths()[: -self._keep], *self._unfinished()]:
            self._discard(old)
        return path

    def _begin(self, unfinished: str) -> None:
        """Create the folder; on this machine also an empty private file: `fsspec` would create both with the umask."""
        if self._is_local:
            make_folder(Path(self._root))
            Path(unfinished).unlink(missing_ok=True)  # a link would be followed
            write(Path(unfinished), b"")
        else:
            self._fs.makedirs(self._root, exist_ok=True)

    def _synchronize(self, file: IO[bytes]) -> None:
        """Wait until the content is on the disk: after a loss of power, a name must not lead to an incomplete file."""
        if self._is_local:
            file.flush()
            os.fsync(file.fileno())

    def _synchronize_folder(self) -> None:
        """Wait until the new name is on the disk, before older checkpoints are deleted."""
        if self._is_local:
            folder = os.open(self._root, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    @property
    def _is_local(self) -> bool:
        found = self._fs.protocol
        return "file" in ((found,) if isinstance(found, str) else found)

    def paths(self) -> list[str]:
        """Return the complete checkpoints, oldest first."""
        return sorted(path for path in self._files() if _NAME.search(path))

    def _unfinished(self) -> list[str]:
        """Return the files of writes that were killed."""
        return [path for path in self._files() if path.endswith(".part")]

    def _files(self) -> list[str]:
        return list(self._fs.ls(self._root, detail=False)) if self._fs.isdir(self._root) else []

    def read_last(self) -> dict[str, Any] | None:
        """Return the content of the newest checkpoint; None if there is none.

        Raises
        ------
        ConfigurationError : the file is not a checkpoint.
        """
        paths = self.paths()
        if not paths:
            return None
        try:
            arrays = read_tensors(self._fs.cat_file(paths[-1]))
            tree = msgspec.msgpack.decode(arrays[_TREE].tobytes(), type=dict[str, Any])
            return _with_arrays(tree, arrays)  # type: ignore[no-any-return]
        except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
            raise ConfigurationError(
                f"{paths[-1]} is not a checkpoint: {error}; remove it to resume from an earlier one, or from the start"
            ) from error

    def _discard(self, path: str) -> None:
        if self._fs.exists(path):
            self._fs.rm_file(path)

    def _last_good(self) -> str:
        paths = self.paths()
        return f"the last complete checkpoint is {paths[-1]}" if paths else "there is no earlier checkpoint"


def _without_arrays(value: Any, path: str, arrays: dict[str, Any]) -> Any:
    """Return ``value`` with each array replaced by a marker; add the arrays to ``arrays`` under unique names."""
    if isinstance(value, np.ndarray):
        name = f"{len(arrays)}{path}"  # the number makes it unique: keys may contain slashes
        arrays[name] = value if value.flags.c_contiguous and not value.flags.writeable else value.copy()
        return {_MARK: name}
    if isinstance(value, Mapping):
        return {_escaped(str(key)): _without_arrays(item, f"{path}/{key}", arrays) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_arrays(item, f"{path}/{i}", arrays) for i, item in enumerate(value)]
    return value


def _with_arrays(value: Any, arrays: Mapping[str, Any]) -> Any:
    if isinstance(value, dict):
        if set(value) == {_MARK}:
            return arrays[value[_MARK]]
        return {_unescaped(key): _with_arrays(item, arrays) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_arrays(item, arrays) for item in value]
    return value


def _escaped(key: str) -> str:
    """Return a key in the form in which it is written, which differs from the marker."""
    return f"_{key}" if _LIKE_MARK.fullmatch(key) else key


def _unescaped(key: str) -> str:
    return key[1:] if _LIKE_MARK.fullmatch(key[1:]) else key


def check_fits(saved: Mapping[str, Any], model: Model) -> None:
    """Raise `ConfigurationError` if a checkpoint and the model differ in the number of parameters or in frozen parameters."""
    held, size = len(saved["weights"]), model.layout.size
    if held != size:
        raise ConfigurationError(
            f"the checkpoint has a model of {held} parameters, but the experiment's model has {size}: "
            "resume with the model that was trained, or choose another folder"
        )
    check_frozen_part(saved, model, "the checkpoint")

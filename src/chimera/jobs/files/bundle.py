"""Bundle of a job: the files that its experiment or function needs, and their paths in the job's folder."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from chimera.core.errors import ConfigurationError
from chimera.core.user_code import is_installed, user_folders
from chimera.jobs.files.content_store import check_manifest, hash_file, hash_text
from chimera.jobs.files.imports import ImportScan, collect_imports, module_file
from chimera.jobs.store.records import File, Function
from chimera.training.experiment.experiment import Experiment
from chimera.training.experiment.paths import is_path
from chimera.training.experiment.toml import literal

EXPERIMENT = "experiment.toml"
"""Name of the experiment file in the job's folder."""
OUTSIDE = "outside"
"""Folder of files from outside the experiment's folder, with a sub-folder for each original folder."""
_IN_FILE = re.compile(r"(.+\.py):([A-Za-z_]\w*)")
_IN_MODULE = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*):([A-Za-z_]\w*)")


@dataclass
class Bundle:
    """Files and settings to upload with a job.

    Attributes
    ----------
    manifest : files by their path in the job's folder, which is on the import path of the job.
    sources : path of each file on this machine.
    experiment : unchanged text of the experiment file; empty for a function.
    settings : overrides for the job: those of the user, then new paths of files from outside the experiment's folder.
    requires : imported modules that are not uploaded.
    """

    manifest: dict[str, File] = field(default_factory=dict)
    sources: dict[str, Path] = field(default_factory=dict)
    experiment: str = ""
    settings: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()

    def add(self, target: str, file: Path) -> None:
        """Add a file under its path in the job's folder, if it is not there yet.

        Raises
        ------
        ConfigurationError : another file has the same path, or the file cannot be read.
        """
        if target in self.sources and self.sources[target] == file:
            return
        present, taken = hash_file(file), self.manifest.get(target)
        if target == EXPERIMENT and self.experiment:
            taken = hash_text(self.experiment)
        if taken is not None and taken != present:
            other = self.sources.get(target, "the experiment file")
            raise ConfigurationError(f"{file} and {other} would both be {target!r} in the job's folder: rename one")
        if taken is None:
            self.manifest[target], self.sources[target] = present, file


def bundle_experiment(path: Path, settings: Sequence[str] = (), *, include: Iterable[Path] = ()) -> Bundle:
    """Return the bundle of an experiment: its code with all imports, and its data files.

    Parameters
    ----------
    settings : overrides, as for ``chimera train --set``, with paths relative to the current folder.
    include : additional files or folders, for example files that the code opens itself.

    Raises
    ------
    ConfigurationError : the experiment is not valid, or one of its files does not exist.
    """
    experiment = Experiment.load(path).with_settings(settings)
    text = path.read_bytes().decode()
    return _Collector(path.resolve().parent, text).collect(experiment.tables, settings, include)


def bundle_loaded(experiment: Experiment, folder: Path) -> Bundle:
    """Return the bundle of an experiment that was loaded from a file in ``folder`` and may have changed since."""
    return _Collector(folder.resolve(), experiment.to_toml()).collect(experiment.tables, (), ())


def bundle_function(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Function, Bundle]:
    """Return the reference to a function in a module or script of the user, and the bundle of its files.

    Raises
    ------
    ConfigurationError : the object is not a named function of a file, or its arguments are not plain (numbers, text,
        bytes, lists, dicts).
    """
    file, name = _source_file(function), function.__qualname__
    try:
        arguments = msgspec.msgpack.encode([args, kwargs])
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigurationError(f"the arguments of {name} cannot be sent: {error}") from error
    packages = 0 if function.__module__ == "__main__" else function.__module__.count(".")
    home = file.parents[packages + (file.name == "__init__.py")]
    collector = _Collector(home, "")
    target = collector.add_code(file, home)
    collector.close()
    return Function(target, name, arguments), collector.bundle


def load_function(function: Function, folder: Path) -> tuple[Callable[..., Any], list[Any], dict[str, Any]]:
    """Import a function from a job's folder, which is added to the import path; return it with its arguments.

    Raises
    ------
    ConfigurationError : the function or its arguments cannot be loaded.
    """
    module = function.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        found = getattr(importlib.import_module(module), function.name)
        args, kwargs = msgspec.msgpack.decode(function.arguments, type=tuple[list[Any], dict[str, Any]])
    except (ImportError, AttributeError, msgspec.MsgspecError) as error:
        raise ConfigurationError(
            f"the job's function {function.name!r} of {function.file!r} cannot be loaded: {error}"
        ) from error
    return found, args, kwargs


class _Collector:
    """Collection of the files of a job.

    Parameters
    ----------
    folder : folder of the experiment or function; files in it keep their relative paths.
    text : text of the experiment file; empty for a function.
    """

    def __init__(self, folder: Path, text: str) -> None:
        self.bundle = Bundle(experiment=text)
        self._folder, self._found = folder, ImportScan()
        self._roots = [folder, *user_folders()]

    def collect(self, tables: Mapping[str, Any], settings: Sequence[str], include: Iterable[Path]) -> Bundle:
        raw = None if settings else tomllib.loads(self.bundle.experiment)  # settings override the file
        own = [f"{'.'.join(path)}={literal(value)}" for path, value in self._path_settings(tables, raw)]
        for file in include:
            self._add_data(_absolute(file), f"--include {file}")
        self.close()
        self.bundle.settings = (*settings, *own)
        return self.bundle

    def close(self) -> None:
        """Add the imported files, and check the manifest."""
        for file, home in self._found.files.items():
            self.bundle.add(self._code_path(file, home), file)
        self.bundle.requires = tuple(sorted(self._found.requires))
        check_manifest(self.bundle.manifest)

    def add_code(self, file: Path, home: Path) -> str:
        """Collect a file with its imports; return its path in the job's folder."""
        if not file.is_file():
            raise ConfigurationError(f"there is no file {str(file)!r}")
        collect_imports(file, home, self._roots, self._found)
        return self._code_path(file, home)

    def _code_path(self, file: Path, home: Path) -> str:
        """Return the path in the job's folder at which a module of ``home`` can be imported under the same name."""
        if file.is_relative_to(self._folder):
            return file.relative_to(self._folder).as_posix()
        if home in self._roots:
            return file.relative_to(home).as_posix()
        return f"{_outside(home)}/{file.relative_to(home).as_posix()}"

    def _add_data(self, path: Path, what: str) -> str:
        """Add a file or folder; return its path in the job's folder."""
        inside = path.is_relative_to(self._folder) and path != self._folder
        target = path.relative_to(self._folder).as_posix() if inside else f"{_outside(path.parent)}/{path.name}"
        if not path.exists():
            raise ConfigurationError(f"{what}: there is no file {str(path)!r}")
        if path.is_file():
            self.bundle.add(target, path)
        else:
            for file in _files(path):
                self.bundle.add(f"{target}/{file.relative_to(path).as_posix()}", file)
        return target

    def _path_settings(
        self, tables: Mapping[str, Any], raw: Any, path: tuple[str, ...] = ()
    ) -> Iterator[tuple[tuple[str, ...], Any]]:
        """Yield each setting whose value must change because its path differs in the job's folder."""
        for key, value in tables.items():
            here = (*path, key)
            there = raw.get(key) if isinstance(raw, Mapping) else raw if key == "name" else None
            if isinstance(value, Mapping):
                yield from self._path_settings(value, there, here)
            else:
                job_value = self._with_job_paths(here, value)
                if job_value != value and not self._is_same_path(there, job_value):
                    yield here, job_value

    def _with_job_paths(self, path: tuple[str, ...], value: Any) -> Any:
        """Return a value with its paths replaced by those in the job's folder."""
        if isinstance(value, list | tuple):
            return [self._with_job_paths(path, one) for one in value]
        if isinstance(value, Mapping):
            return {key: self._with_job_paths((*path, key), one) for key, one in value.items()}
        if not isinstance(value, str):
            return value
        if path[0] != "train" and path[-1] != "name" and is_path(path[-1], value):
            # A loaded experiment has absolute paths; only names of the hub are unchanged.
            return self._add_data(_absolute(Path(value)), ".".join(path)) if Path(value).is_absolute() else value
        if in_file := _IN_FILE.fullmatch(value):
            file = self._resolve_file(in_file[1])
            return f"{self.add_code(file, file.parent)}:{in_file[2]}"
        if in_module := _IN_MODULE.fullmatch(value):
            self._module(in_module[1], certain=path[-1] == "name")
        return value

    def _resolve_file(self, file: str) -> Path:
        """Return a Python file as the trainer finds it: relative to the current folder, else to the experiment's folder."""
        there = _absolute(Path(file).expanduser())
        return there if there.is_file() else Path(os.path.normpath(self._folder / file))

    def _module(self, name: str, *, certain: bool) -> None:
        there = module_file(name, self._roots)
        if there is not None:
            self.add_code(*there)
        elif certain and name.partition(".")[0] not in {*sys.stdlib_module_names, "chimera"}:
            self._found.requires.add(name.partition(".")[0])

    def _is_same_path(self, raw: Any, job_value: Any) -> bool:
        """Return whether the value in the file already is that path, as seen from the job's folder."""
        if isinstance(raw, list) and isinstance(job_value, list) and len(raw) == len(job_value):
            return all(map(self._is_same_path, raw, job_value))
        if isinstance(raw, Mapping) and isinstance(job_value, Mapping) and raw.keys() == job_value.keys():
            return all(self._is_same_path(raw[key], job_value[key]) for key in raw)
        return raw == job_value or (
            isinstance(raw, str) and isinstance(job_value, str) and os.path.normpath(raw) == job_value
        )


def _absolute(path: Path) -> Path:
    """Return the absolute path, relative to the current folder, without resolving links."""
    return Path(os.path.normpath(Path.cwd() / path))


def _outside(folder: Path) -> str:
    """Return the folder for files from outside the experiment's folder; a hash hides the original name."""
    return f"{OUTSIDE}/{hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]}"


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, in order, without hidden ones."""
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from _files(entry)
        elif entry.is_file():
            yield entry


def _source_file(function: Callable[..., Any]) -> Path:
    """Return the source file of a named function."""
    name = getattr(function, "__qualname__", "")
    try:
        file = Path(inspect.getsourcefile(inspect.unwrap(function)) or "").resolve()
    except TypeError:
        file = Path()
    if not (name.isidentifier() and file.is_file()):
        raise ConfigurationError(
            f"{name or function!r} cannot be sent: only a named top-level function of a .py file can, not a lambda, a method "
            "or a nested function"
        )
    if is_installed(file):
        raise ConfigurationError(f"{name} belongs to an installed package, {file}: call it in a function of your own")
    return file

"""What travels with a job: the files that its experiment or function needs, each where it finds it again."""

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
from chimera.jobs.files.content_store import check, described, of_text
from chimera.jobs.files.imports import Found, follow, module_file
from chimera.jobs.store.records import File, Function
from chimera.training.experiment.experiment import Experiment, is_path
from chimera.training.experiment.toml import literal

EXPERIMENT = "experiment.toml"
"""What the experiment file is called in the job's folder."""
OUTSIDE = "outside"
"""The folder for what lies outside of the experiment's own, below a folder for each place that it came from."""
_IN_FILE = re.compile(r"(.+\.py):([A-Za-z_]\w*)")
_IN_MODULE = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*):([A-Za-z_]\w*)")


@dataclass
class Bundle:
    """What travels.

    Attributes
    ----------
    manifest : the files by the path that they get in the job's folder, which is on the import path there.
    sources : where each of them lies here.
    experiment : the text of the experiment file, as it is.
    settings : changes of it to make there, those of the user first; the others say where files lie that were elsewhere here.
    requires : modules that the code imports and that do not travel.
    """

    manifest: dict[str, File] = field(default_factory=dict)
    sources: dict[str, Path] = field(default_factory=dict)
    experiment: str = ""
    settings: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()

    def add(self, place: str, file: Path) -> None:
        """Let a file travel, once.

        Raises
        ------
        ConfigurationError : another one has its place, or it cannot be read.
        """
        if place in self.sources and self.sources[place] == file:
            return
        present, taken = described(file), self.manifest.get(place)
        if place == EXPERIMENT and self.experiment:
            taken = of_text(self.experiment)
        if taken is not None and taken != present:
            other = self.sources.get(place, "the experiment file")
            raise ConfigurationError(f"{file} and {other} would both be {place!r} in the job's folder: rename one")
        if taken is None:
            self.manifest[place], self.sources[place] = present, file


def of_experiment(path: Path, settings: Sequence[str] = (), *, include: Iterable[Path] = ()) -> Bundle:
    """Return what travels with an experiment: its code, what that imports, and the data files that it names.

    Parameters
    ----------
    settings : changes of it, as of ``chimera train --set``, with paths relative to the present folder.
    include : further files or folders, such as what the code opens by itself.

    Raises
    ------
    ConfigurationError : the experiment cannot be used, or a file that it names is not there.
    """
    experiment = Experiment.load(path).with_settings(settings)
    text = path.read_bytes().decode()
    return _Gathering(path.resolve().parent, text).of(experiment.tables, settings, include)


def of_function(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Function, Bundle]:
    """Return how a function of a module or script of one's own is found again, and what travels with it.

    Raises
    ------
    ConfigurationError : it has no name in a file, or its arguments are not plain: numbers, text, bytes, lists, dicts.
    """
    file, name = _file_of(function), function.__qualname__
    try:
        arguments = msgspec.msgpack.encode([args, kwargs])
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigurationError(f"the arguments of {name} cannot travel: {error}") from error
    packages = 0 if function.__module__ == "__main__" else function.__module__.count(".")
    home = file.parents[packages + (file.name == "__init__.py")]
    gathering = _Gathering(home, "")
    place = gathering.code(file, home)
    gathering.close()
    return Function(place, name, arguments), gathering.bundle


def load_function(function: Function, folder: Path) -> tuple[Callable[..., Any], list[Any], dict[str, Any]]:
    """Import a function from a job's folder, which is put on the import path; return it with its arguments.

    Raises
    ------
    ConfigurationError : it is not there.
    """
    module = function.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        found = getattr(importlib.import_module(module), function.name)
        args, kwargs = msgspec.msgpack.decode(function.arguments, type=tuple[list[Any], dict[str, Any]])
    except (ImportError, AttributeError, msgspec.MsgspecError) as error:
        raise ConfigurationError(
            f"the job's function {function.name!r} of {function.file!r} cannot be had: {error}"
        ) from error
    return found, args, kwargs


class _Gathering:
    """The search for what travels.

    Parameters
    ----------
    folder : what lies in it keeps its place.
    """

    def __init__(self, folder: Path, text: str) -> None:
        self.bundle = Bundle(experiment=text)
        self._folder, self._found = folder, Found()
        self._roots = [folder, *user_folders()]

    def of(self, tables: Mapping[str, Any], settings: Sequence[str], include: Iterable[Path]) -> Bundle:
        raw = None if settings else tomllib.loads(self.bundle.experiment)  # what was set wins over the file
        own = [f"{'.'.join(path)}={literal(value)}" for path, value in self._changes(tables, raw)]
        for file in include:
            self._data(_absolute(file), f"--include {file}")
        self.close()
        self.bundle.settings = (*settings, *own)
        return self.bundle

    def close(self) -> None:
        """Add what the code imports, and check the whole."""
        for file, home in self._found.files.items():
            self.bundle.add(self._place_of_code(file, home), file)
        self.bundle.requires = tuple(sorted(self._found.requires))
        check(self.bundle.manifest)

    def code(self, file: Path, home: Path) -> str:
        """Let a file travel with what it imports; return its place."""
        if not file.is_file():
            raise ConfigurationError(f"there is no file {str(file)!r}")
        follow(file, home, self._roots, self._found)
        return self._place_of_code(file, home)

    def _place_of_code(self, file: Path, home: Path) -> str:
        """Return where a file goes that was found as a module of ``home``: so that it is that module there too."""
        if file.is_relative_to(self._folder):
            return file.relative_to(self._folder).as_posix()
        if home in self._roots:
            return file.relative_to(home).as_posix()
        return f"{_outside(home)}/{file.relative_to(home).as_posix()}"

    def _data(self, path: Path, what: str) -> str:
        """Let a file or folder travel; return its place."""
        inside = path.is_relative_to(self._folder) and path != self._folder
        place = path.relative_to(self._folder).as_posix() if inside else f"{_outside(path.parent)}/{path.name}"
        if not path.exists():
            raise ConfigurationError(f"{what}: there is no file {str(path)!r}")
        if path.is_file():
            self.bundle.add(place, path)
        else:
            for file in _files(path):
                self.bundle.add(f"{place}/{file.relative_to(path).as_posix()}", file)
        return place

    def _changes(
        self, tables: Mapping[str, Any], raw: Any, path: tuple[str, ...] = ()
    ) -> Iterator[tuple[tuple[str, ...], Any]]:
        """Yield the values that have to be others there, where the present ones or those in the file mean another place."""
        for key, value in tables.items():
            here = (*path, key)
            there = raw.get(key) if isinstance(raw, Mapping) else raw if key == "name" else None
            if isinstance(value, Mapping):
                yield from self._changes(value, there, here)
            else:
                placed = self._placed(here, value)
                if placed != value and not self._means(there, placed):
                    yield here, placed

    def _placed(self, path: tuple[str, ...], value: Any) -> Any:
        """Return a value with the places that its files get."""
        if isinstance(value, list | tuple):
            return [self._placed(path, one) for one in value]
        if isinstance(value, Mapping):
            return {key: self._placed((*path, key), one) for key, one in value.items()}
        if not isinstance(value, str):
            return value
        if path[0] != "train" and path[-1] != "name" and is_path(path[-1], value):
            return self._data(_absolute(Path(value)), ".".join(path))
        if in_file := _IN_FILE.fullmatch(value):
            file = self._resolved(in_file[1])
            return f"{self.code(file, file.parent)}:{in_file[2]}"
        if in_module := _IN_MODULE.fullmatch(value):
            self._module(in_module[1], certain=path[-1] == "name")
        return value

    def _resolved(self, file: str) -> Path:
        """Return a Python file as the trainer would find it from the present folder, else from the experiment's."""
        there = _absolute(Path(file).expanduser())
        return there if there.is_file() else Path(os.path.normpath(self._folder / file))

    def _module(self, name: str, *, certain: bool) -> None:
        there = module_file(name, self._roots)
        if there is not None:
            self.code(*there)
        elif certain and name.partition(".")[0] not in {*sys.stdlib_module_names, "chimera"}:
            self._found.requires.add(name.partition(".")[0])

    def _means(self, raw: Any, placed: Any) -> bool:
        """Whether what stands in the file is that place already, read from the job's folder."""
        if isinstance(raw, list) and isinstance(placed, list) and len(raw) == len(placed):
            return all(map(self._means, raw, placed))
        if isinstance(raw, Mapping) and isinstance(placed, Mapping) and raw.keys() == placed.keys():
            return all(self._means(raw[key], placed[key]) for key in raw)
        return raw == placed or (isinstance(raw, str) and isinstance(placed, str) and os.path.normpath(raw) == placed)


def _absolute(path: Path) -> Path:
    """Return where a path leads from the present folder, links on the way left as they are."""
    return Path(os.path.normpath(Path.cwd() / path))


def _outside(folder: Path) -> str:
    """Return where the files of a folder go that is not the experiment's; the name of the folder stays here."""
    return f"{OUTSIDE}/{hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]}"


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, but for hidden ones, in order."""
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from _files(entry)
        elif entry.is_file():
            yield entry


def _file_of(function: Callable[..., Any]) -> Path:
    """Return the file in which a function stands by its name."""
    name = getattr(function, "__qualname__", "")
    try:
        file = Path(inspect.getsourcefile(inspect.unwrap(function)) or "").resolve()
    except TypeError:
        file = Path()
    if not (name.isidentifier() and file.is_file()):
        raise ConfigurationError(
            f"{name or function!r} cannot travel: only a function that stands by its name in a .py file does, no lambda or "
            "method, and none of another function"
        )
    if is_installed(file):
        raise ConfigurationError(f"{name} is part of what is installed here, {file}: call it in a function of your own")
    return file

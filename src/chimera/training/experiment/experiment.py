"""The experiment file: reads, overrides and writes the TOML tables of an experiment.

Six tables select a plug-in by ``name``; their other keys are its options. ``[train]`` holds keyword arguments of `Trainer`,
whose signature is the only list of them.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec

from chimera.core.errors import ConfigurationError, did_you_mean
from chimera.core.safe_path import MAX_SETTINGS_BYTES
from chimera.core.toml import read_toml
from chimera.core.validation_message import validation_message
from chimera.training.experiment.arguments import arguments, converted, hint_of
from chimera.training.experiment.overrides import full_path, place, read_value
from chimera.training.experiment.paths import anchored
from chimera.training.experiment.toml import dump_toml

if TYPE_CHECKING:
    from chimera.training.trainer import Trainer

PLUGINS = ("data", "model", "strategy", "codec", "partition", "engine")
TABLES = ("data", "model", "train", "strategy", "codec", "partition", "engine")
_IN_A_FILE = (str, bool, int, float, list, Mapping, date, time)
_ONLY_IN_CODE = ("callbacks", "out", "resume", "progress")  # arguments of Trainer that do not describe the experiment
_TABLES_OF_OPTIONS = {
    **dict.fromkeys(("loss", "metrics", "step"), "model"),
    **dict.fromkeys(("lr", "momentum", "weight_decay", "schedule"), "train.optimizer"),
}


@dataclass(frozen=True)
class Experiment:
    """A complete description of a run, except for its output folder.

    Parameters
    ----------
    tables : value of each table by name. A plug-in is a name, a mapping with ``name`` and options, or, from Python, an object.
        ``train`` maps arguments of `Trainer` to values.
    source : name of the experiment in messages, such as the path of the file.

    Raises
    ------
    ConfigurationError : a table or key is unknown or missing, or a value has the wrong type.
    """

    tables: Mapping[str, Any]
    source: str = "experiment"

    def __post_init__(self) -> None:
        for name in self.tables:
            if name not in TABLES:
                raise ConfigurationError(f"{self.source}: {_no_table(name)}")
        tables = {name: self._plugin(name, self.tables[name]) for name in PLUGINS if name in self.tables}
        for name in PLUGINS:
            if name not in tables and (name == "model" or (name == "data" and not self._nodes_own_data())):
                raise ConfigurationError(
                    f'{self.source}: the table [{name}] is missing; it needs at least name = "..."'
                )
        tables["train"] = self._train(self.tables.get("train", {}))
        object.__setattr__(self, "tables", {name: tables[name] for name in TABLES if name in tables})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read an experiment file. Relative paths in it (``path``, ``*_path``, ``file.py:name``) start at its folder.

        The folder is put on the import path if it contains a module that the file names (``package.module:name``).

        Raises
        ------
        ConfigurationError : the file does not exist, is not TOML (with line and column), or is not an experiment.
        """
        path = Path(path)
        try:
            with path.open(encoding="utf-8") as file:
                text = file.read(MAX_SETTINGS_BYTES + 1)
        except FileNotFoundError:
            raise ConfigurationError(f"there is no experiment file {str(path)!r}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"the experiment file {str(path)!r} cannot be read: {error}") from error
        if len(text) > MAX_SETTINGS_BYTES:
            raise ConfigurationError(f"the experiment file {str(path)!r} has more than {MAX_SETTINGS_BYTES >> 20} MiB")
        try:
            tables = read_toml(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigurationError(f"{path}:{_syntax_error(error, text)}") from None
        except ValueError as error:
            raise ConfigurationError(f"the experiment file {str(path)!r} cannot be read: {error}") from None
        return cls(anchored(tables, path.resolve().parent, TABLES), str(path))

    @classmethod
    def of(cls, **arguments: Any) -> Self:
        """Return the experiment that these keyword arguments of `Trainer` describe. None means not set."""
        given = {key: value for key, value in arguments.items() if value is not None and key not in _ONLY_IN_CODE}
        tables: dict[str, Any] = {key: given.pop(key) for key in PLUGINS if key in given}
        return cls({**tables, "train": given})

    def with_settings(self, settings: Iterable[str]) -> Self:
        """Return a copy with overrides ``KEY=VALUE``, such as ``strategy.shards=2``.

        The value is parsed as TOML, or else is a string; ``True``, ``False`` and ``.5`` are accepted as in Python. A key
        without a dot, as in ``engine=simulated``, selects another plug-in and removes the options of the previous one.
        """
        changed = self
        for setting in settings:
            key, equals, text = setting.partition("=")
            path = [part.strip() for part in key.split(".")]
            if not equals or not all(path):
                raise ConfigurationError(f"--set {setting!r}: write KEY=VALUE, such as strategy.shards=2")
            try:
                value = read_value(text.strip())
            except ConfigurationError as error:
                raise ConfigurationError(f"--set {setting!r}: {error}") from None
            changed = changed.with_value(path, value, f"--set {setting!r}")
        return changed

    def with_value(self, path: Sequence[str], value: Any, what: str = "this change") -> Self:
        """Return a copy with a value at ``path``, such as ``("strategy", "shards")``; ``what`` names the change in messages.

        A path of one name replaces a table, see `with_table`. Relative file paths in the value start at the current folder.
        """
        if path[0] not in TABLES:
            raise ConfigurationError(f"{what}: {_no_table(path[0])}")
        if len(path) == 1:
            return self.with_table(path[0], anchored({path[0]: value}, Path.cwd(), TABLES)[path[0]])
        tables = {**self.tables, path[0]: _default(path[0], self.tables)}
        place(tables, full_path(path, tables.get("engine")), value, what)
        return type(self)(anchored(tables, Path.cwd(), TABLES), self.source)

    def with_table(self, name: str, value: Any) -> Self:
        """Return a copy with another table. If ``value`` is the current plug-in's name, its options are kept."""
        present = self.tables.get(name)
        if isinstance(value, str) and isinstance(present, Mapping) and present.get("name") == value:
            return self
        return type(self)({**self.tables, name: value}, self.source)

    def with_workers(self, workers: str) -> Self:
        """Return a copy with another number of workers, or with the nodes at these comma-separated URLs as workers."""
        if workers.isdecimal() and int(workers) > 0:
            return self.with_settings([f"train.workers={workers}"])
        urls = [url.strip() for url in workers.split(",") if url.strip()]
        if not all("://" in url for url in urls) or not urls:
            raise ConfigurationError(f"--workers {workers}: give a number of at least 1, or URLs separated by commas")
        engine = _default("engine", self.tables)
        if engine["name"] != "http":
            raise ConfigurationError(f"--workers {workers}: workers at URLs need the engine http: --engine http")
        changed = self.with_table("engine", {**engine, "nodes": urls})
        return changed.with_settings([f"train.workers={len(urls)}"])

    def with_faults(self, faults: Iterable[str]) -> Self:
        """Return a copy with additional faults."""
        train = dict(self.tables["train"])
        return type(self)(
            {**self.tables, "train": {**train, "faults": [*train.get("faults", ()), *faults]}}, self.source
        )

    def to_toml(self) -> str:
        """Return the file of this experiment, with all defaults of `Trainer`, so that later defaults do not change it.

        A part that was given as a Python object becomes a comment that says so. Tokens of an engine are left out, because users
        share folders of runs; the environment can provide the tokens.
        """
        complete: dict[str, Any] = {name: _default(name, self.tables) for name in TABLES}
        if isinstance(complete["engine"], Mapping):
            complete["engine"] = {k: v for k, v in complete["engine"].items() if not _is_secret(k, v)}
        complete["train"] = {
            key: self.tables["train"].get(key, p.default)
            for key, p in arguments().items()
            if key not in (*PLUGINS, *_ONLY_IN_CODE) and self.tables["train"].get(key, p.default) is not None
        }
        empty = [
            name for name, table in complete.items() if isinstance(table, Mapping) and not table and name != "train"
        ]
        return dump_toml({name: table for name, table in complete.items() if name not in empty})

    def trainer(self, **overrides: Any) -> Trainer:
        """Return the trainer of this experiment. ``overrides`` are arguments of `Trainer` that replace those of the file."""
        from chimera.training.trainer import Trainer

        tables = dict(self.tables)
        return Trainer(**{**tables.pop("train"), **tables, **overrides})

    def _nodes_own_data(self) -> bool:
        """Return whether the nodes of the engine may have data. True for an engine named by path, which is not imported."""
        from chimera.training.plugin import named, nodes_own_data

        engine = _default("engine", self.tables)
        if isinstance(engine, str) or (isinstance(engine, Mapping) and isinstance(engine.get("name"), str)):
            return ":" in named(engine)[0] or nodes_own_data(engine)
        return not isinstance(engine, Mapping) and nodes_own_data(engine)

    def _plugin(self, table: str, value: Any) -> Any:
        if isinstance(value, str):
            return {"name": value}
        if isinstance(value, Mapping):
            name = value.get("name")
            if name is None and table == "data" and self._nodes_own_data():
                name = _default("data", {})["name"]  # options of the nodes' data
            if not isinstance(name, str) or not name:
                found = "nothing" if name is None else repr(name)
                raise ConfigurationError(f'{self.source}: [{table}] needs name = "...", a string; found {found}')
            return {**value, "name": name}
        if isinstance(value, bool | int | float | date | time):
            raise ConfigurationError(f"{self.source}: {table} = {value!r} is neither a name nor a table")
        return _importable(value)

    def _train(self, table: Any) -> dict[str, Any]:
        if not isinstance(table, Mapping):
            raise ConfigurationError(f"{self.source}: train = {table!r} is not a table")
        allowed = {key: p for key, p in arguments().items() if key not in (*PLUGINS, *_ONLY_IN_CODE)}
        checked = {}
        for key, value in table.items():
            if key not in allowed:
                raise ConfigurationError(f"{self.source}: [train] has no key {_elsewhere(key, allowed)}")
            try:
                checked[key] = converted(key, value)
            except msgspec.ValidationError as error:
                if not isinstance(value, _IN_A_FILE):
                    checked[key] = value  # an object from Python: Trainer checks it
                    continue
                message = validation_message(error, hint_of(key))
                raise ConfigurationError(
                    f"{self.source}: [train] {key} = {value!r} cannot be used: {message}"
                ) from None
            except TypeError:  # msgspec does not support the type: Trainer checks the value
                checked[key] = value
        return checked


def _elsewhere(key: str, allowed: Collection[str]) -> str:
    """Return the rest of a message about an unknown key of [train]: the table that has it, or the known keys."""
    if key in _TABLES_OF_OPTIONS:
        return f"{key!r}: set {_TABLES_OF_OPTIONS[key]}.{key}"
    return f"{key!r}{did_you_mean(key, allowed)} keys: {', '.join(allowed)}"


def _no_table(name: str) -> str:
    if name in arguments() and name not in _ONLY_IN_CODE:
        return f"{name!r} belongs to the table [train]: train.{name}"
    return f"there is no table [{name}]{did_you_mean(name, TABLES)} tables: {', '.join(TABLES)}"


def _syntax_error(error: tomllib.TOMLDecodeError, text: str) -> str:
    what, _, place = str(error).partition(" (at ")
    numbers_found = re.findall(r"\d+", place)
    if len(numbers_found) != 2:  # the end of the document
        lines = text.splitlines() or [""]
        numbers_found = [str(len(lines)), str(len(lines[-1]) + 1)]
    return f"{numbers_found[0]}:{numbers_found[1]}: not valid TOML: {what}"


def _is_secret(option: str, value: Any) -> bool:
    """Return whether an option of an engine holds tokens. The path of a file with tokens is not secret."""
    return option == "token" or (option == "tokens" and not isinstance(value, str))


def _default(table: str, tables: Mapping[str, Any]) -> Any:
    """Return a table; if it is not set, the default of `Trainer`."""
    if table in tables or table == "train":
        return tables.get(table, {})
    default = arguments()[table].default
    return {"name": default} if isinstance(default, str) else {}


def _importable(value: Any) -> Any:
    """Return a table that names a function or class if it can be imported; else the object itself."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(name, str) or not name.isidentifier() or module in (None, "__main__"):
        return value
    return {"name": f"{module}:{name}"}

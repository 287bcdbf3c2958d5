"""A model as a table: ``kind`` selects the loader, the other keys are its options."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, Self, TypeAlias

from chimera.core.errors import ChimeraError, ConfigurationError
from chimera.core.registry import Registry
from chimera.core.toml import read_toml
from chimera.models.instantiation import first_line


class Predictor(Protocol):
    """A loaded model."""

    def predict(self, queries: list[Any]) -> Sequence[Any]:
        """Return one result per query, in order. An exception in the list is the error of that query alone."""


Emit: TypeAlias = Callable[[int, int, str], None]
"""Called with the index of a query in its batch, a position in the text of its answer, and the text from there on."""


class StreamingPredictor(Predictor, Protocol):
    """A loaded model that can emit the texts of its answers while it generates them."""

    def stream(self, queries: list[Any], emit: Emit) -> Sequence[Any]:
        """Return what `predict` returns, and emit the texts of queries that are dictionaries with ``stream`` = True.

        The emitted texts of a query, one after the other, are the beginning of the text of its answer.
        """


class Kind(Protocol):
    """A checked table: a frozen dataclass whose fields are the keys of the table."""

    @property
    def code(self) -> str:
        """The key of the table that makes the worker run code other than the libraries'; empty if there is none."""

    def with_absolute_paths(self, folder: Path) -> Self:
        """Return the same with absolute paths; relative paths start at ``folder``.

        Raises
        ------
        ConfigurationError : a file is missing.
        """

    def load(self) -> Predictor:
        """Load the model. Heavy libraries are imported only here.

        Raises
        ------
        ConfigurationError : the model cannot be loaded; one line of text.
        """


KINDS: Registry[Kind] = Registry("kind of model", "chimera.inference.models")
"""The loaders of models, by ``kind``."""


def check(table: Mapping[str, Any], *, folder: str | Path | None = None, code: bool = True) -> dict[str, Any]:
    """Return the table with defaults filled in and absolute paths. Nothing is loaded.

    Parameters
    ----------
    folder : folder at which relative paths start; default: the current folder.
    code : whether to accept a model that runs code of its own.

    Raises
    ------
    ConfigurationError : a kind or key is unknown, a value is invalid, or a library or file is missing.
    """
    kind = _kind(table, folder)
    if kind.code and not code:
        raise ConfigurationError(
            f"the key {kind.code!r} of the model runs code, which this cluster refuses: "
            "start it with 'chimera infer up --code' if you trust all clients that have its token"
        )
    complete = asdict(kind)  # type: ignore[call-overload]
    return {"kind": table["kind"], **{key: value for key, value in complete.items() if value is not None}}


def check_query(table: Mapping[str, Any], query: Any) -> None:
    """Check a query of a job before it is submitted, if the kind of the model has a method for this. Nothing is loaded.

    Raises
    ------
    ConfigurationError : the table is invalid, or a file is missing.
    DataError : the model cannot answer the query: it lacks a column.
    """
    checks = getattr(_kind(table, None), "check_query", None)
    if checks is not None:
        checks(query)


def code_of(table: Mapping[str, Any]) -> str:
    """Return the key of a table that makes the worker run code other than the libraries'; empty if there is none.

    Raises
    ------
    ConfigurationError : the table is invalid, or a file is missing.
    """
    return _kind(table, None).code


def load(table: Mapping[str, Any], *, folder: str | Path | None = None) -> Predictor:
    """Load the model of a table.

    Parameters
    ----------
    folder : folder at which relative paths start; default: the current folder.

    Raises
    ------
    ConfigurationError : the table is invalid, or the model cannot be loaded.
    """
    return _kind(table, folder).load()


def is_shared(table: Mapping[str, Any]) -> bool:
    """Return whether processes that are forked after `load` can use the model: it has no threads, and is on no accelerator.

    A kind has the attribute ``shared`` for this. Call it in a process without threads.
    """
    try:
        return bool(getattr(_kind(table, None), "shared", False))
    except ChimeraError:
        return False


def modules_of(kinds: Iterable[str]) -> list[str]:
    """Return the modules that models of these kinds always need and that take long to import.

    Unknown kinds, kinds whose library is missing, and names by path have none.
    """
    found: list[str] = []
    for kind in kinds:
        if ":" not in kind:  # a name by path would run code
            with contextlib.suppress(ChimeraError):
                found += KINDS.find(kind).preload
    return found


def read(source: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    """Return the checked table of a model.

    Parameters
    ----------
    source : a table, a TOML file with one (relative paths in it start at its folder), the folder of a run of Chimera,
        a ``.skops`` file, or a factory, ``package.module:name`` or ``file.py:name``.

    Raises
    ------
    ConfigurationError : the source is none of these, or its table is invalid.
    """
    if isinstance(source, Mapping):
        return check(source)
    path = Path(source).expanduser()
    if path.suffix == ".toml":
        return check(_of_file(path), folder=path.parent)
    if path.suffix == ".skops":
        return check({"kind": "sklearn", "file": str(path)})
    if (path / "experiment.toml").is_file():
        return check({"kind": "chimera", "run": str(path)})
    if ":" in str(source) and "://" not in str(source):
        return check({"kind": "factory", "factory": str(source)})
    raise ConfigurationError(
        f"{str(source)!r} names no model: use a .toml file with its table, the folder of a run, a .skops file, "
        "'package.module:factory' or 'file.py:factory'"
    )


def _kind(table: Mapping[str, Any], folder: str | Path | None) -> Kind:
    options = dict(table)
    name = options.pop("kind", None)
    if not isinstance(name, str) or ":" in name:
        known = ", ".join(entry.name for entry in KINDS.entries())
        raise ConfigurationError(f'the table of a model needs kind = "...", one of {known}; found {name!r}')
    made = KINDS.create(name, options)
    try:
        return made.with_absolute_paths(Path(folder or ".").resolve())
    except ChimeraError:
        raise
    except (
        OSError,
        RuntimeError,
        ValueError,
    ) as error:  # e.g. a name that is too long, an unknown user, an invalid character
        raise ConfigurationError(f"the model of kind {name!r} has an invalid path: {first_line(error)}") from error


def _of_file(path: Path) -> dict[str, Any]:
    try:
        return read_toml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigurationError(f"there is no model file {str(path)!r}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    except ValueError as error:
        raise ConfigurationError(f"{path} is not valid TOML: {error}") from None


def existing_path(what: str, path: str, folder: Path, *, folders: bool = False) -> str:
    """Return the absolute path of an existing file, or folder.

    Raises
    ------
    ConfigurationError : it does not exist.
    """
    whole = folder / Path(path).expanduser()
    if not (whole.is_dir() if folders else whole.is_file()):
        raise ConfigurationError(f"{what}: there is no {'folder' if folders else 'file'} {str(whole)!r}")
    return str(whole)


def file_stamp(*files: Path) -> str:
    """Return a text that changes when one of the files is written again, so that workers load the model again."""
    found = [file.stat() for file in files]
    return f"{sum(each.st_size for each in found)}-{max(each.st_mtime_ns for each in found)}"

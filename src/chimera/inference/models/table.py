"""A model as a table: ``kind`` says what loads it, the other keys are the options of that kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, Self

from chimera.core.errors import ChimeraError, ConfigurationError
from chimera.core.registry import Registry
from chimera.core.toml import read_toml
from chimera.models.construction import first_line


class Predictor(Protocol):
    """What answers queries."""

    def predict(self, queries: list[Any]) -> Sequence[Any]:
        """Return one result a query, in their order. An exception among them is the error of that query alone."""


class Kind(Protocol):
    """A table whose values have been checked; a frozen dataclass, its fields the keys of the table."""

    @property
    def code(self) -> str:
        """The key of the table by which code is run that is none of the libraries'; nothing if none is."""

    def with_absolute_paths(self, folder: Path) -> Self:
        """Return it with absolute paths, relative ones taken from ``folder``.

        Raises
        ------
        ConfigurationError : a file that it needs is not there.
        """

    def load(self) -> Predictor:
        """Load the model. Only now are heavy libraries imported.

        Raises
        ------
        ConfigurationError : it cannot be loaded, in one line.
        """


KINDS: Registry[Kind] = Registry("kind of model", "chimera.inference.models")
"""What loads models, by the ``kind`` of their tables."""


def check(table: Mapping[str, Any], *, folder: str | Path | None = None, code: bool = True) -> dict[str, Any]:
    """Return the table complete: defaults filled in, and paths absolute. Nothing is loaded.

    Parameters
    ----------
    folder : where relative paths in it start; by default the present folder.
    code : accept a model that runs code of its own.

    Raises
    ------
    ConfigurationError : an unknown kind or key, a value that cannot be used, a library or a file that is missing.
    """
    kind = _kind(table, folder)
    if kind.code and not code:
        raise ConfigurationError(
            f"the key {kind.code!r} of the model runs code, which this cluster refuses: "
            "start it with 'chimera infer up --code' if you trust all clients that have its token"
        )
    complete = asdict(kind)  # type: ignore[call-overload]
    return {"kind": table["kind"], **{key: value for key, value in complete.items() if value is not None}}


def load(table: Mapping[str, Any], *, folder: str | Path | None = None) -> Predictor:
    """Load the model of a table.

    Parameters
    ----------
    folder : where relative paths in it start; by default the present folder.

    Raises
    ------
    ConfigurationError : the table cannot be used, or its model cannot be loaded.
    """
    return _kind(table, folder).load()


def read(source: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    """Return the checked table that a user means.

    Parameters
    ----------
    source : a table, a TOML file that holds one (relative paths in it start at its folder), the folder of a run of Chimera,
        a ``.skops`` file, or a factory, ``package.module:name`` or ``file.py:name``.

    Raises
    ------
    ConfigurationError : it is none of these, or its table cannot be used.
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
        f"{str(source)!r} names no model: give a .toml file with its table, the folder of a run, a .skops file, or "
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
    except (OSError, RuntimeError, ValueError) as error:  # too long a name, no such user, a character that no path has
        raise ConfigurationError(
            f"the model of kind {name!r} names a path that cannot be: {first_line(error)}"
        ) from error


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
    """Return the absolute path of a file (or a folder) that is there.

    Raises
    ------
    ConfigurationError : it is not.
    """
    whole = folder / Path(path).expanduser()
    if not (whole.is_dir() if folders else whole.is_file()):
        raise ConfigurationError(f"{what}: there is no {'folder' if folders else 'file'} {str(whole)!r}")
    return str(whole)


def file_stamp(*files: Path) -> str:
    """Return a text that changes when one of the files is written again, so that a worker loads it again."""
    found = [file.stat() for file in files]
    return f"{sum(each.st_size for each in found)}-{max(each.st_mtime_ns for each in found)}"

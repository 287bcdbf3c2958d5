"""``chimera new``: write the files of a project to begin with."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from chimera.core.errors import ConfigurationError, did_you_mean
from chimera.core.file_modules import load_file
from chimera.training.experiment.toml import literal

_TEMPLATES = Path(__file__).with_name("templates")
_MAKE_DATA = "make_data.py"


@dataclass(frozen=True)
class Kind:
    """A kind of project.

    Attributes
    ----------
    content : description for the user.
    needs : modules that the project needs beyond the base installation, each with its extra.
    data : name of the data that the project makes if the user has none; empty if it has none.
    form : what data of the user must be.
    next : the command to type in the folder.
    """

    content: str
    needs: Mapping[str, str]
    data: str = ""
    form: str = ""
    next: str = "chimera train experiment.toml"


KINDS = {
    "tabular": Kind(
        "a table (CSV or Parquet) and a network of PyTorch",
        {"torch": "train"},
        "data.csv",
        "a table (CSV or Parquet) is a file",
    ),
    "images": Kind(
        "a folder of images for each class",
        {"torch": "images", "PIL": "images"},
        "images",
        "images are in a folder for each class",
    ),
    "text": Kind("a text and a small language model", {"torch": "train"}, "text.txt", "a text is a file"),
    "torch": Kind("a PyTorch module and data set, in Python", {"torch": "train"}, next="python train.py"),
    "nodes": Kind("REST nodes: a master, two workers and a client", {"fastapi": "nodes"}, next="python master.py"),
    "federation": Kind(
        "nodes that keep their data and dial out to a hub",
        {"websockets": "federation"},
        next="chimera hub demo federation",
    ),
    "plug-in": Kind("a strategy and a codec for others to install", {}, next="pip install -e '.'"),
}


def new(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar=f"[{'|'.join(KINDS)}]", show_default=False, help="The kind of the project; default: ask."
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="[FOLDER]", show_default=False, help="The folder to write; default: chimera-KIND."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="PATH", help="Use this file or folder; default: write data to begin with."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--target", metavar="COLUMN", help="Predict this column of the table; default: the last."),
    ] = None,
) -> None:
    """Write a project to begin with: an experiment, a model, a README and a test that passes."""
    name = kind or _asked()
    if name not in KINDS:
        raise ConfigurationError(
            f"there is no kind of project {name!r}{did_you_mean(name, KINDS)} kinds: {', '.join(KINDS)}"
        )
    chosen, place = KINDS[name], folder or Path(f"chimera-{name}")
    _check(name, chosen, data, target)
    if name == "nodes":
        from chimera.nodes.project import write_project

        files = write_project(place)
    else:
        files = _write(name, chosen, place, data, target)
    for file in files:
        typer.echo(f"  {file}")
    typer.echo(f"to begin: cd {shlex.quote(str(place))} && {chosen.next}")


def _asked() -> str:
    """Ask what the user has.

    Raises
    ------
    ConfigurationError : no user is at a terminal.
    """
    if not sys.stdin.isatty():
        raise ConfigurationError(f"name what you have: chimera new {'|'.join(KINDS)}")
    for number, (name, kind) in enumerate(KINDS.items(), 1):
        typer.echo(f"  {number}  {name:<11} {kind.content}")
    answer = typer.prompt("What do you have? (number or name)").strip()
    return list(KINDS)[int(answer) - 1] if answer.isdecimal() and 0 < int(answer) <= len(KINDS) else answer


def _check(name: str, kind: Kind, data: Path | None, target: str | None) -> None:
    """Raise ConfigurationError if an option does not fit the kind, or a library is missing."""
    from importlib.util import find_spec

    from chimera.core.errors import MissingExtraError

    for module, extra in kind.needs.items():
        if find_spec(module) is None:
            raise MissingExtraError(f"a project of the kind {name!r}", module, extra)
    if data is not None and not kind.data:
        raise ConfigurationError(f"--data has no meaning for a project of the kind {name!r}")
    if data is not None and not data.exists():
        raise ConfigurationError(f"--data: there is no {str(data)!r}")
    if data is not None and data.is_dir() != (name == "images"):
        found = "a folder" if data.is_dir() else "a file"
        raise ConfigurationError(f"--data: {str(data)!r} is {found}: {kind.form}")
    if target is not None and name != "tabular":
        raise ConfigurationError(
            f"--target has no meaning for a project of the kind {name!r}: only tables have columns"
        )


def _write(name: str, kind: Kind, folder: Path, data: Path | None, target: str | None) -> list[Path]:
    """Write the files of a template, and data to begin with if the user has none; return the files.

    Raises
    ------
    ConfigurationError : a file exists already, or cannot be written.
    """
    project = re.sub(r"[^a-z0-9]+", "-", Path(os.path.realpath(folder)).name.lower()).strip("-") or name
    module = _module(project)
    sources = [file for file in sorted((_TEMPLATES / name).glob("*.*")) if data is None or file.name != _MAKE_DATA]
    texts: dict[Path, str] = {}
    for file in sources:
        text = file.read_text(encoding="utf-8").replace("my-project", project).replace("my_project", module)
        in_package = file.name in ("strategy.py", "codec.py")
        texts[folder / module / file.name if in_package else folder / file.name] = _with_data(text, kind, data, target)
    if name == "plug-in":
        texts[folder / module / "__init__.py"] = '"""Plug-ins for Chimera."""\n'
    made = folder / kind.data if kind.data and data is None else None
    there = [str(file) for file in (*texts, *([made] if made else [])) if file.exists()]
    if there:
        raise ConfigurationError(f"{', '.join(there)} would be overwritten: choose a new folder")
    try:
        for file, text in texts.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        if made is not None:
            load_file(_TEMPLATES / name / _MAKE_DATA).write(made)
    except OSError as error:
        for file in (*texts, *([made] if made else [])):  # on a full disk; a second call would refuse to overwrite them
            with contextlib.suppress(OSError):
                shutil.rmtree(file) if file.is_dir() else file.unlink()
        raise ConfigurationError(f"cannot write the project into {folder}: {error}") from error
    return [*texts, *([made] if made else [])]


def _module(project: str) -> str:
    """Return the name of a Python package for a project."""
    module = project.replace("-", "_")
    return module if module.isidentifier() else f"plugins_{module}"


def _with_data(text: str, kind: Kind, data: Path | None, target: str | None) -> str:
    """Return the text of an experiment or a README with the user's data and target column in place of the template's."""
    if target is not None:
        text = re.sub(r'(?m)^target = ".*"$', lambda _: f"target = {literal(target)}", text)
    if data is None:
        return text
    if target is None:
        text = re.sub(r'(?m)^target = ".*"\n', "", text)  # the default is the last column
    if data.suffix.lower() == ".parquet":
        text = text.replace('name = "csv"', 'name = "parquet"')
    text = re.sub(r'(?m)^path = ".*"$', lambda _: f"path = {literal(data.resolve())}", text)
    return text.replace(f"`{kind.data}`", f"`{data}`")

"""What Python files import, told without running them."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chimera.core.errors import ConfigurationError

_MOST_FILES = 2000


@dataclass
class Found:
    """What some files need.

    Attributes
    ----------
    files : those themselves and all that they import from the folders, each with the folder that it was found in.
    requires : the other modules, of neither Python nor Chimera, by their first names.
    """

    files: dict[Path, Path] = field(default_factory=dict)
    requires: set[str] = field(default_factory=set)


def follow(file: Path, home: Path, folders: Sequence[Path], found: Found) -> None:
    """Find what a file imports, wherever the import stands, and what that imports in turn.

    An import that may fail (inside ``try: ... except ImportError``) requires nothing, and one for type checkers alone is passed
    over. What is imported by a name that is made while the code runs is not seen.

    Parameters
    ----------
    home : the folder on the import path from which the file is a module.
    folders : where modules are looked for besides.
    found : gets what is found.

    Raises
    ------
    ConfigurationError : a file cannot be read as Python.
    """
    if file in found.files:
        return
    if len(found.files) == _MOST_FILES:
        raise ConfigurationError(
            f"the code imports more than {_MOST_FILES} files of {home}: these are not just the job's"
        )
    found.files[file] = home
    for name, optional in _imported(file, home):
        _resolve(name, home, folders, found, optional=optional)


def module_file(name: str, folders: Sequence[Path]) -> tuple[Path, Path] | None:
    """Return the file of a module and the folder it was found in; a package is its ``__init__.py``."""
    for folder in folders:
        place = folder.joinpath(*name.split("."))
        for file in (place / "__init__.py", place.with_name(f"{place.name}.py")):
            if file.is_file():
                return file, folder
    return None


def _resolve(name: str, home: Path, folders: Sequence[Path], found: Found, *, optional: bool) -> None:
    first = name.partition(".")[0]
    if not name or first in sys.stdlib_module_names or first == "chimera":
        return
    parts = name.split(".")
    own = False
    for length in range(1, len(parts) + 1):  # each package on the way runs its __init__.py
        there = module_file(".".join(parts[:length]), [home, *folders])
        if there is not None:
            own = True
            follow(*there, folders, found)
    if not own and not optional:
        found.requires.add(first)


def _imported(file: Path, home: Path) -> Iterator[tuple[str, bool]]:
    """Yield the modules that a file imports, whole names, and whether the import may fail."""
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except (OSError, SyntaxError, ValueError) as error:
        where = f"{file}:{error.lineno}" if isinstance(error, SyntaxError) else str(file)
        raise ConfigurationError(f"{where} cannot be read as Python: {getattr(error, 'msg', error)}") from error
    package = file.parent.relative_to(home).parts if file.parent.is_relative_to(home) else ()
    for node, optional in _nodes(tree, optional=False):
        if isinstance(node, ast.Import):
            yield from ((alias.name, optional) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: max(0, len(package) - node.level + 1)] if node.level else ()
            name = ".".join((*base, *([node.module] if node.module else [])))
            yield name, optional
            if name:
                yield from ((f"{name}.{alias.name}", True) for alias in node.names)
            else:
                yield from ((alias.name, True) for alias in node.names)


def _nodes(node: ast.AST, *, optional: bool) -> Iterator[tuple[ast.AST, bool]]:
    """Yield all below a node that runs, and whether it may fail to import."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and _for_checkers(child.test):
            for other in child.orelse:
                yield other, optional
                yield from _nodes(other, optional=optional)
            continue
        yield child, optional
        tried = isinstance(child, ast.Try) and any(_excuses(handler) for handler in child.handlers)
        yield from _nodes(child, optional=optional or tried)


def _for_checkers(test: ast.expr) -> bool:
    name = test.id if isinstance(test, ast.Name) else test.attr if isinstance(test, ast.Attribute) else ""
    return name == "TYPE_CHECKING"


def _excuses(handler: ast.ExceptHandler) -> bool:
    """Whether a handler catches that a module is missing."""
    caught = "" if handler.type is None else ast.dump(handler.type)
    names = ("ImportError", "ModuleNotFoundError", "'Exception'", "BaseException")
    return handler.type is None or any(name in caught for name in names)

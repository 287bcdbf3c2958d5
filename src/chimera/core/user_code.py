"""The user's code beside an experiment: found on the driver's import path, and collected for other machines."""

from __future__ import annotations

import shutil
import site
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

from chimera.core.errors import ConfigurationError

CHIMERA = Path(__file__).resolve().parents[1]
"""The folder of this package, which is copied too."""
MAX_BYTES = 20 << 20
_NOT_CODE = {"__pycache__", "node_modules", "site-packages"}


def stage(target: Path, folders: Sequence[Path] | None = None) -> None:
    """Copy the Python files of these folders, by default the user's import path, into the folder ``target``.

    Raises
    ------
    ConfigurationError : the files have more than 20 MB, so some do not belong to the experiment.
    """
    total = 0
    for folder in reversed(user_folders() if folders is None else folders):  # the first of two equal names is used
        for file in _python_files(folder):
            total += file.stat().st_size
            if total > MAX_BYTES:
                raise ConfigurationError(
                    f"the Python files below {str(folder)!r} are more than {MAX_BYTES >> 20} MB: name the folder to ship "
                    "with the engine's option working_dir"
                )
            copy = target / file.relative_to(folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)


def user_folders() -> list[Path]:
    """Return the folders on the import path that are not part of an installation."""
    folders = [Path(entry or ".").resolve() for entry in sys.path]
    return [
        folder
        for folder in dict.fromkeys(folders)
        if folder.is_dir() and folder != CHIMERA.parent and not is_installed(folder)
    ]


def make_importable(module: str, folder: Path) -> None:
    """Put ``folder`` at the end of the import path if it contains ``module``, or its package.

    Engines give workers the same path. Since the folder is at the end, a file ``json.py`` of the user replaces no
    module of a library.
    """
    first = module.partition(".")[0]
    if ((folder / f"{first}.py").is_file() or (folder / first).is_dir()) and str(folder) not in sys.path:
        sys.path.append(str(folder))


def is_installed(path: Path) -> bool:
    """Return whether a file or folder is part of an installation of Python or of its packages."""
    installed = {sys.prefix, sys.base_prefix, *sysconfig.get_paths().values()}
    installed |= {*site.getsitepackages(), site.getusersitepackages()}
    return any(path.is_relative_to(Path(place).resolve()) for place in installed)


def _python_files(folder: Path) -> Iterator[Path]:
    """Yield the modules in a folder, and those of the packages in it."""
    for entry in sorted(folder.iterdir()):
        if entry.suffix == ".py" and entry.is_file():
            yield entry
        elif entry.is_dir() and entry.name.isidentifier() and entry.name not in _NOT_CODE and any(entry.glob("*.py")):
            yield from _python_files(entry)

"""Modules of the user's files: ``some/file.py`` by path, also if another module has its name."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from chimera.core.errors import ConfigurationError

_UNIQUE = re.compile(r"(.+)_[0-9a-f]{8}")


def load_file(path: Path) -> ModuleType:
    """Import a file, and put its folder on the import path. If its name is in use, it gets a unique one.

    Raises
    ------
    ConfigurationError : there is no such file.
    """
    if not path.is_file():
        raise ConfigurationError(f"there is no file {str(path)!r}")
    path = path.resolve()
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    module = importlib.import_module(path.stem)
    if Path(getattr(module, "__file__", None) or "").resolve() == path:
        return module
    return importlib.import_module(_unique_name(path))


def _unique_name(path: Path) -> str:
    return f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"


class _UniqueNames(MetaPathFinder):
    """Finds files on the import path by their unique names, so that workers of this machine find the modules of the driver."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,  # noqa: ARG002 - the protocol has it
    ) -> ModuleSpec | None:
        """Return the specification of a file on the import path that has this unique name; None if there is none."""
        named = _UNIQUE.fullmatch(fullname)
        if path is not None or named is None:
            return None
        files = (Path(folder or ".").resolve() / f"{named[1]}.py" for folder in sys.path)
        found = next((file for file in files if _unique_name(file) == fullname and file.is_file()), None)
        return None if found is None else importlib.util.spec_from_file_location(fullname, found)


sys.meta_path.append(_UniqueNames())  # the last, so that it searches no module that another finder finds

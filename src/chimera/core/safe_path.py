"""Files of a folder that another user may have written: no link in the folder may lead out of it."""

from __future__ import annotations

from pathlib import Path

from chimera.core.errors import ConfigurationError


def safe_path(folder: Path, name: str) -> Path:
    """Return the path of a file in a folder, for reading or writing. The folder itself may be a link.

    Raises
    ------
    ConfigurationError : a link leads out of the folder.
    """
    path = folder / name
    try:
        stays = path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # a cycle of links
        stays = False
    if not stays:
        raise ConfigurationError(f"{path} is a link out of its folder: put the file itself there, or remove the link")
    return path

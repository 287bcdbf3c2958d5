"""The location of a run's files: a folder on this machine, or a URL of an object store."""

from __future__ import annotations

import os
import re
from pathlib import Path

from chimera.core.errors import ConfigurationError

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_AS_A_PATH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(?!/)")  # the form that Path gives to "s3://bucket"
_SECRET = re.compile(
    r"[^/@]*:(?!\d+(?:/|$))[^@]*@"
)  # ``user:password@``; a secret may have slashes, and a port is none
_ACCOUNTS = ("abfs", "abfss", "ftp", "sftp", "smb", "ssh")  # their hosts may follow a name and ``@``
_LOCAL = ("file", "local")


def folder_of(location: str | os.PathLike[str]) -> Path | None:
    """Return the folder on this machine that ``location`` names, as a path or a URL ``file://``; None for other URLs.

    Raises
    ------
    ConfigurationError : the text is empty, or is a URL that cannot be that of a run or holds a password, which the message
        does not repeat.
    """
    text = os.fspath(location)
    if not text:  # as from a variable of the shell that is not set; it would be the current folder
        raise ConfigurationError("the folder of a run is empty; '.' is the current folder")
    match = _URL.fullmatch(text)
    if match is None:
        if "://" in text:
            raise ConfigurationError("the location of a run has '://', but is not one URL such as s3://bucket/folder")
        if broken := _AS_A_PATH.match(text):
            raise ConfigurationError(
                f"{text} has one slash after {broken[1]}: give the URL as a text, {broken[1]}://..."
            )
        return Path(location)
    scheme, rest = match[1].lower(), match[2].rstrip("/")
    if scheme in _LOCAL:
        return Path(rest or "/")
    _check(scheme, rest)
    return None


def store_url(location: str | os.PathLike[str]) -> str:
    """Return the URL of a store in one form: its scheme in lower case, and no slash at its end."""
    scheme, _, rest = os.fspath(location).partition("://")
    return f"{scheme.lower()}://{rest.rstrip('/')}"


def path_in_run(location: str | os.PathLike[str], name: str) -> Path | str:
    """Return the path or URL of a file of a run."""
    folder = folder_of(location)
    return f"{store_url(location)}/{name}" if folder is None else folder / name


def _check(scheme: str, rest: str) -> None:
    host, _, path = rest.partition("/")
    if _SECRET.match(rest) or ("@" in host and scheme not in _ACCOUNTS):
        raise ConfigurationError(
            f"the URL {scheme}://... has a user name or a password before '@': files of a run would show it; give it as the "
            "library of this store reads it, such as in environment variables or a profile (docs/how-to/object-stores.md)"
        )
    if "?" in rest or "#" in rest or "::" in rest:
        raise ConfigurationError(
            f"the URL {scheme}://{host} has options ('?', '#' or '::'): give the folder only, and options as the library of "
            "this store reads them (docs/how-to/object-stores.md)"
        )
    parts = path.split("/") if path else []
    if not rest or not rest.isprintable() or not {"", ".", ".."}.isdisjoint(parts):
        raise ConfigurationError(f"{scheme}://{rest!r} is not the folder of a run: write {scheme}://bucket/folder")

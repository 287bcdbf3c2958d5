"""Where data lie on this machine, and how they get there."""

from __future__ import annotations

import os
import socket
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import DataError
from chimera.core.private import make_folder

SILENCE_S = 30.0
"""How long a server may say nothing before a download is given up, in seconds."""


def data_folder() -> Path | None:
    """Return ``$CHIMERA_DATA``, the folder with the user's own copies of data sets, if it is set."""
    folder = os.environ.get("CHIMERA_DATA")
    return Path(folder).expanduser() if folder else None


def cache_folder() -> Path:
    """Return ``$XDG_CACHE_HOME/chimera``, or ``~/.cache/chimera``: where downloads are kept. Not made yet."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "chimera"


@contextmanager
def downloading(what: str, advice: str) -> Iterator[None]:
    """Show on stderr that ``what`` is being downloaded, and turn what goes wrong into one line that ends in ``advice``.

    Raises
    ------
    DataError : no network, no answer, or not what was asked for.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(SILENCE_S)  # scikit-learn sets none, and a silent server would hold us for ever
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns at every retry; the error below says it once
            progress.add_task(f"downloading {what}", total=None)
            yield
    except (OSError, EOFError, HTTPException, ValueError) as error:  # ValueError: an answer that is not the data
        reason = " ".join(str(getattr(error, "reason", error)).split())
        raise DataError(f"{what} could not be downloaded ({reason}); {advice}") from error
    finally:
        socket.setdefaulttimeout(before)


def keep(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write an .npz file into the cache, so that it is there whole or not at all; where that fails, warn and go on."""
    try:
        make_folder(path.parent)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            part = Path(folder) / path.name
            np.savez(part, allow_pickle=False, **dict(arrays))
            part.replace(path)
    except OSError as error:
        warnings.warn(
            f"{path} cannot be written, so the next run downloads again: {error}", RuntimeWarning, stacklevel=2
        )

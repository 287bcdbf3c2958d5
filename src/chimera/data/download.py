"""Folders of data sets on this machine, and downloads into the cache."""

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

DOWNLOAD_TIMEOUT_S = 30.0
"""Seconds without data from a server after which a download fails."""


def cache_folder() -> Path:
    """Return ``$XDG_CACHE_HOME/chimera``, or ``~/.cache/chimera``, the folder of downloads. It may not exist."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "chimera"


@contextmanager
def downloading(what: str, advice: str) -> Iterator[None]:
    """Show on stderr that ``what`` is being downloaded; turn errors into one line that ends in ``advice``.

    Raises
    ------
    DataError : there is no network, the server does not answer, or the answer is not the data.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(
        DOWNLOAD_TIMEOUT_S
    )  # scikit-learn sets no timeout, and would wait for a silent server without an end
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # scikit-learn warns at every retry; the error below reports it once
            progress.add_task(f"downloading {what}", total=None)
            yield
    except (OSError, EOFError, HTTPException, ValueError) as error:  # ValueError: an answer that is not the data
        reason = " ".join(str(getattr(error, "reason", error)).split())
        raise DataError(f"{what} could not be downloaded ({reason}); {advice}") from error
    finally:
        socket.setdefaulttimeout(before)


def save_to_cache(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write an .npz file into the cache atomically; if that fails, only warn."""
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

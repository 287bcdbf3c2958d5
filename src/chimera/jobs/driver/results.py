"""Return values of a function on each worker, in a file of its run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from chimera.core.errors import RunError
from chimera.core.private import make_folder
from chimera.training.progress.history import write_atomically

_FILE = "results.msgpack"


def write_results(results: list[Any], run: Path) -> None:
    """Write the results; numbers of NumPy become plain numbers, arrays become lists.

    Raises
    ------
    RunError : a result is not plain (numbers, text, bytes, lists, dicts).
    """
    try:
        body = msgspec.msgpack.encode(results, enc_hook=_plain)
    except (TypeError, ValueError, OverflowError) as error:
        raise RunError(f"the result of the function cannot be sent: {error}; return plain values") from error
    make_folder(run)
    write_atomically(run / _FILE, body)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} is not a plain value")


def read_results(run: Path) -> list[Any]:
    """Return the results, in rank order.

    Raises
    ------
    RunError : the file is missing or cannot be read.
    """
    try:
        return msgspec.msgpack.decode((run / _FILE).read_bytes(), type=list[Any])
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        raise RunError(f"the results in {run} cannot be read: {error}") from error

"""The training data of a worker, read at the first use and again when the files have changed."""

from __future__ import annotations

import threading
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.models.model import Task
from chimera.nodes.table import X_FILE, Y_FILE, read_training_data
from chimera.web.logs import status


@dataclass(frozen=True)
class Data:
    """The contents of the two files.

    Attributes
    ----------
    X : float64, shape (n, d).
    columns : names of the columns of X.
    y : shape (n,), or (n, k).
    y_columns : names of the columns of y.
    """

    X: NDArray[np.float64]
    columns: tuple[str, ...]
    y: NDArray[Any]
    y_columns: tuple[str, ...]

    def bootstrapped(self, name: str) -> Data:
        """Return a bootstrap sample of n rows, with a seed from the worker's name, so that workers draw different rows."""
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        rows = rng.integers(len(self.X), size=len(self.X))
        return Data(self.X[rows], self.columns, self.y[rows], self.y_columns)


class TrainingData:
    """Reads and caches the data of one folder.

    Parameters
    ----------
    folder : a folder with ``X_train.csv`` and ``y_train.csv``.
    task : with ``"regression"``, targets must be numbers.
    """

    def __init__(self, folder: Path, task: Task) -> None:
        self.folder, self._task = folder, task
        self._data: Data | None = None
        self._stamp: object = None
        self._lock = threading.Lock()

    def read(self) -> Data:
        """Return the current data, the same object as before if the files have not changed.

        Raises
        ------
        DataError : the data are invalid.
        """
        with self._lock:
            stamp = [_stamp(self.folder / name) for name in (X_FILE, Y_FILE)]
            if self._data is None or stamp != self._stamp:
                self._data = None
                self._data = Data(*read_training_data(self.folder, task=self._task))
                self._stamp = stamp
                status().info("read %d rows of %d columns from %s", *self._data.X.shape, self.folder)
            return self._data


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino

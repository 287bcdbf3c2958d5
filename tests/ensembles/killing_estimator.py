"""An estimator that kills its process."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

from sklearn.neighbors import KNeighborsClassifier


class KillingEstimator(KNeighborsClassifier):
    """Kills its process in `fit` once for each file in ``folder``, which it deletes."""

    def __init__(self, folder: str = "", n_neighbors: int = 5) -> None:
        super().__init__(n_neighbors)
        self.folder = folder

    def fit(self, X: Any, y: Any) -> Any:  # noqa: N803
        for file in Path(self.folder).iterdir():
            with contextlib.suppress(FileNotFoundError):  # another process has deleted it
                file.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        return super().fit(X, y)

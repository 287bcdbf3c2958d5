"""An estimator that kills."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from sklearn.neighbors import KNeighborsClassifier


class Lethal(KNeighborsClassifier):
    """Kills its process when it is fitted, as often as there are files to delete."""

    def __init__(self, folder: str = "", n_neighbors: int = 5) -> None:
        super().__init__(n_neighbors)
        self.folder = folder

    def fit(self, X: Any, y: Any) -> Any:  # noqa: N803
        for file in Path(self.folder).iterdir():
            file.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().fit(X, y)

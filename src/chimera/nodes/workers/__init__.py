"""Workers: web servers that own their data, and fit models, predict, or compute gradients."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chimera.nodes.workers.classification_worker import ClassificationWorker
    from chimera.nodes.workers.regression_worker import RegressionWorker
    from chimera.nodes.workers.sgd_worker import SGDWorker
    from chimera.nodes.workers.torch_worker import TorchWorker

_MODULES = {
    "ClassificationWorker": "chimera.nodes.workers.classification_worker",
    "RegressionWorker": "chimera.nodes.workers.regression_worker",
    "SGDWorker": "chimera.nodes.workers.sgd_worker",
    "TorchWorker": "chimera.nodes.workers.torch_worker",
}

__all__ = ["ClassificationWorker", "RegressionWorker", "SGDWorker", "TorchWorker"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__

"""REST nodes: masters and workers as small web servers, and their launchers."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from chimera.core.errors import MissingExtraError
from chimera.core.extras import WEB

if TYPE_CHECKING:
    from chimera.nodes.masters import AggregationMaster, ParameterServerMaster
    from chimera.nodes.workers import ClassificationWorker, RegressionWorker, SGDWorker, TorchWorker

_MODULES = {
    "AggregationMaster": "chimera.nodes.masters",
    "ClassificationWorker": "chimera.nodes.workers",
    "ParameterServerMaster": "chimera.nodes.masters",
    "RegressionWorker": "chimera.nodes.workers",
    "SGDWorker": "chimera.nodes.workers",
    "TorchWorker": "chimera.nodes.workers",
}
__all__ = [
    "AggregationMaster",
    "ClassificationWorker",
    "ParameterServerMaster",
    "RegressionWorker",
    "SGDWorker",
    "TorchWorker",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_MODULES[name]), name)
    except ModuleNotFoundError as error:
        if error.name in WEB:
            raise MissingExtraError(f"the node {name}", error.name, "nodes") from error
        raise


def __dir__() -> list[str]:
    return __all__

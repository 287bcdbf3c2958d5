"""Chimera: distributed machine learning from a laptop to a cluster.

Layers, from the top; an import goes down, never up, never sideways between the families::

    cli
     └─ nodes
         └─ training
             └─ strategies · codecs · data · models · engines · privacy · report
                 └─ core
"""

from __future__ import annotations

from chimera.version import __version__

TYPE_CHECKING = (
    False  # `typing` takes 17 ms, in which Ctrl-C would print a traceback: `chimera.cli.start` is not loaded yet
)
if TYPE_CHECKING:
    from typing import Any

    from chimera import ddp, remote, utils
    from chimera.cli.script import train
    from chimera.core.call import get
    from chimera.core.engine import Engine
    from chimera.core.stop_signals import Terminated
    from chimera.data.dataset import Dataset
    from chimera.data.iterable import IterableSamples
    from chimera.data.samples import SampleDataset
    from chimera.data.split import Split
    from chimera.embeddings.recipe import embed
    from chimera.inference.session import InferenceCluster, InferenceJob, infer
    from chimera.jobs.client.handle import JobHandle, submit
    from chimera.models.sklearn_model import SklearnModel
    from chimera.models.torch_model import TorchModel
    from chimera.nodes.run import run
    from chimera.training.artifacts.rebuild import load
    from chimera.training.artifacts.result import Run
    from chimera.training.comparison.comparison import Comparison
    from chimera.training.comparison.execution import compare
    from chimera.training.experiment.experiment import Experiment
    from chimera.training.progress.callback import Callback, Event, Progress
    from chimera.training.trainer import Trainer

_PLACES = {
    "Callback": "chimera.training.progress.callback",
    "Comparison": "chimera.training.comparison.comparison",
    "Dataset": "chimera.data.dataset",
    "Event": "chimera.training.progress.callback",
    "Experiment": "chimera.training.experiment.experiment",
    "InferenceCluster": "chimera.inference.session",
    "InferenceJob": "chimera.inference.session",
    "JobHandle": "chimera.jobs.client.handle",
    "Progress": "chimera.training.progress.callback",
    "IterableSamples": "chimera.data.iterable",
    "Run": "chimera.training.artifacts.result",
    "SampleDataset": "chimera.data.samples",
    "SklearnModel": "chimera.models.sklearn_model",
    "Split": "chimera.data.split",
    "Terminated": "chimera.core.stop_signals",
    "TorchModel": "chimera.models.torch_model",
    "Trainer": "chimera.training.trainer",
    "compare": "chimera.training.comparison.execution",
    "embed": "chimera.embeddings.recipe",
    "get": "chimera.core.call",
    "infer": "chimera.inference.session",
    "load": "chimera.training.artifacts.rebuild",
    "run": "chimera.nodes.run",
    "submit": "chimera.jobs.client.handle",
    "train": "chimera.cli.script",
}

__all__ = [
    "Callback",
    "Comparison",
    "Dataset",
    "Event",
    "Experiment",
    "InferenceCluster",
    "InferenceJob",
    "IterableSamples",
    "JobHandle",
    "Progress",
    "Run",
    "SampleDataset",
    "SklearnModel",
    "Split",
    "Terminated",
    "TorchModel",
    "Trainer",
    "__version__",
    "compare",
    "ddp",
    "embed",
    "engine",
    "get",
    "infer",
    "load",
    "remote",
    "run",
    "submit",
    "train",
    "utils",
]


def engine(name: str, **options: Any) -> Engine:
    """Start an engine by name, for code that drives actors itself; see `chimera.core.engine.Engine` for its verbs.

    Raises
    ------
    ConfigurationError : no engine has this name, or it does not accept these options.
    """
    from chimera.core.engine import ENGINES

    return ENGINES.create(name, options)


def __getattr__(name: str) -> Any:
    import importlib

    if name in ("ddp", "remote", "utils"):
        return importlib.import_module(f"chimera.{name}")
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return __all__

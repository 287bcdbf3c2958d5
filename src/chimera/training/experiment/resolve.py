"""Resolution of an experiment's parts: names, tables and objects become engines, data sets, models and data providers."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from chimera.codecs.codec import CODECS
from chimera.core.counted import counted
from chimera.core.engine import ENGINES, Engine
from chimera.core.errors import ConfigurationError
from chimera.data.dataset import RowData, TrainingData
from chimera.data.indicators import check_default_loss, check_ignored, check_probabilities, check_values
from chimera.data.lazy import lazy_dataset
from chimera.data.nested_arrays import is_nested
from chimera.data.nodes import NodesData
from chimera.data.partition import Partitioner
from chimera.data.provider import DataProvider, PartitionedData, WorkerData
from chimera.data.scaling import Standardize
from chimera.data.split import DATASETS, Split
from chimera.models.compute import Compute
from chimera.models.conversion import as_model, build_model
from chimera.models.loss import IGNORED
from chimera.models.losses import INDICATOR_LOSSES
from chimera.models.model import MODELS, Model
from chimera.strategies.strategy import Strategy
from chimera.training.aggregation.aggregation import AGGREGATIONS
from chimera.training.experiment.preloaded import PRELOADED
from chimera.training.fault_tolerance.settings import FaultTolerance
from chimera.training.plugin import label, named

# The processes of a run import the module of a model whose class is from, or derived from, one of these libraries.
_SLOW_LIBRARIES = {"sklearn", "transformers", "lightning", "pytorch_lightning"}


def preload_of(data: Any = None, model: Any = None, codecs: Iterable[Any] = ()) -> list[str]:
    """Return the modules that the processes of a run need and that are slow to import."""
    found = [module for module in PRELOADED if module != "torch" or importlib.util.find_spec("torch")]
    parts = [(DATASETS, data), (MODELS, model), *((CODECS, codec) for codec in codecs)]
    for registry, part in parts:
        if _is_named(part):
            found += registry.find(named(part)[0]).preload
    bases = [kind.__module__ for kind in type(getattr(model, "module", model)).__mro__]
    return found + [module for module in bases if module.partition(".")[0] in _SLOW_LIBRARIES][:1]


def open_engine(engine: Any, preload: Sequence[str]) -> tuple[Engine, bool]:
    """Return an engine, and whether this function created it. The caller must close an engine that was created.

    ``preload`` names modules that the engine's processes import before the first actor starts, if the engine supports that.
    """
    if not isinstance(engine, str | Mapping):
        if not hasattr(engine, "spawn"):
            raise ConfigurationError(
                f"{label(engine)} is not an engine: give a name, a table, or an engine from chimera.engine"
            )
        return engine, False
    name, options = named(engine)
    given: dict[str, Any] = {}
    if "preload" in inspect.signature(ENGINES.find(name).factory).parameters and "preload" not in options:
        given["preload"] = list(preload)
    return ENGINES.create(name, options, **given), True


def _is_named(data: Any) -> bool:
    return isinstance(data, str) or (isinstance(data, Mapping) and "name" in data)


def mapping_as_data(data: Any) -> Any:
    """Return a mapping of arrays or of parts as a data set, or as a pair (train, test); other data are unchanged.

    ``{"x": inputs, "labels": labels}`` is a mapping of arrays. A mapping of parts, such as a ``DatasetDict`` of Hugging
    Face, has the key ``train``, and ``test`` or ``validation`` if it has a test part.
    """
    if not isinstance(data, Mapping) or isinstance(data.get("name"), str):
        return data
    if is_nested(data):
        return lazy_dataset(data, {})
    if "train" not in data:
        return data
    test = next((name for name in ("test", "validation") if name in data), None)
    return data["train"] if test is None else (data["train"], data[test])


def split_of(data: Any, seed: int, standardize: Standardize = "auto") -> Split:
    """Return training and test set. If only one set is given, ``seed`` selects the fifth of it that becomes the test set.

    ``standardize`` applies to data without a name; data sets with a name have the option themselves.
    """
    if _is_named(data):
        name, options = named(data)
        made: Any = DATASETS.create(name, options)
        if isinstance(made, NodesData):
            raise ConfigurationError(
                f"data {name!r} needs an engine whose nodes have rows, such as 'http': give data for this engine"
            )
        # A text data set is a split of another class. Other results of factories are converted like data given as objects.
        return (
            made
            if hasattr(made, "train") and hasattr(made, "test")
            else Split.of(made, seed=seed, standardize=standardize)
        )
    return Split.of(data, seed=seed, standardize=standardize)


def nodes_data_of(data: Any) -> NodesData | None:
    """Return the driver's declaration about rows of nodes; None if the driver has data of its own."""
    if not _is_named(data) or named(data)[0] != "nodes":
        return None
    made: Any = DATASETS.create(*named(data))
    return made if isinstance(made, NodesData) else None


def check_data(
    train: TrainingData,
    workers: int,
    tolerance: FaultTolerance,
    *,
    nodes_own_data: bool,
    test_share: float | None = None,
) -> None:
    """Raise ConfigurationError if the data is too small for the workers, or cannot be divided as the options require."""
    if test_share is not None and hasattr(train, "provider") and not nodes_own_data:
        raise ConfigurationError("test_per_client needs a data set whose samples have numbers, not a stream")
    if not nodes_own_data:
        if workers > len(train):
            raise ConfigurationError(
                f"{counted(workers, 'worker')} cannot share {counted(len(train), 'training sample')}"
            )
    elif tolerance.on_worker_loss == "redistribute":
        raise ConfigurationError(
            "on_worker_loss 'redistribute' needs data that can be sent, but here each node keeps its own data"
        )


def provider_of(
    engine: Engine,
    train: TrainingData,
    partition: Partitioner,
    *,
    workers: int,
    batch_size: int,
    seed: int,
    test_share: float | None = None,
) -> DataProvider:
    """Return the source of the workers' batches: the nodes' own data, pipelines of the data set, or rows in memory."""
    if engine.nodes_own_data:
        return WorkerData(batch_size, seed, test_share)
    own: Callable[..., DataProvider] | None = getattr(train, "provider", None)
    if own is None:
        return PartitionedData(cast(RowData, train), partition, batch_size, seed, test_share)
    return own(engine, partition, workers=workers, batch_size=batch_size, seed=seed)


def check_codecs(
    strategy: Strategy, name: str, codec: tuple[str, dict[str, Any]], downlink: tuple[str, dict[str, Any]]
) -> None:
    """Raise ConfigurationError if a codec cannot be created, or if the strategy sends no messages that it can encode."""
    if CODECS.create(*downlink).by_rows and not strategy.by_rows:
        raise ConfigurationError(
            f"strategy {name!r} needs the whole model at each worker: use another downlink than 'rows'"
        )
    if CODECS.create(*downlink).by_rows and codec != ("rows", {}):
        raise ConfigurationError(
            f"with downlink {downlink[0]!r} workers push rows, which codec {codec[0]!r} cannot encode: use codec 'rows'"
        )
    if CODECS.create(*codec).chained:
        raise ConfigurationError(
            f"codec {codec[0]!r} encodes weights that workers receive: move it to the table [codec.downlink]"
        )
    if strategy.carries and CODECS.create(*codec).carries:
        raise ConfigurationError(
            f"strategy {name!r} has its own error feedback for codec {codec[0]!r}: set the codec's error_feedback to false"
        )
    if strategy.sends == "messages":
        return
    for each in (downlink, *([codec] if strategy.sends == "nothing" else [])):
        if each != ("identity", {}):
            message = f"strategy {name!r} sends no messages that codec {each[0]!r} could encode"
            raise ConfigurationError(f"{message}{' on the downlink' if each is downlink else ''}: use 'identity'")
    if strategy.sends == "collectives":
        CODECS.reduction(*codec)


def check_aggregation(strategy: Strategy, codec: str, downlink: tuple[str, dict[str, Any]], workers: int) -> None:
    """Raise ConfigurationError if the aggregation rule does not fit the messages of the strategy's workers."""
    asked = strategy.aggregated(workers)
    if asked is None:
        return
    sends = CODECS.create(*downlink)
    if asked.edges and (sends.chained or sends.by_rows):
        raise ConfigurationError(
            f"downlink {downlink[0]!r} sends each worker a message of its own, but edge servers forward one message to all: "
            "use another downlink, or remove hierarchical"
        )
    name, options = named(asked.rule)
    rule = AGGREGATIONS.create(name, options)
    rule.check(asked.contributors)
    for refused, reason in (
        (asked.weighted and not rule.linear, "does not support weights of workers: set weighted to false"),
        (asked.reached and not rule.follows, "aggregates changes, not weights: set send to 'change'"),
        (
            asked.shards > 1 and rule.whole,
            f"compares whole vectors, but {asked.shards} servers hold a slice each: set shards to 1",
        ),
        (
            codec == "rows" and not rule.by_rows,
            "would never change a row that few workers send: use another codec than 'rows'",
        ),
    ):
        if refused:
            raise ConfigurationError(f"aggregation {name!r} {reason}")


def configured(model: Model, compute: Compute) -> Model:
    """Return the model, configured to compute as ``compute`` states.

    Raises
    ------
    ConfigurationError : the model has no such options, or does not support their values.
    """
    configure = getattr(model, "configure", None)
    if configure is not None:
        configure(compute)
    elif compute != Compute():
        raise ConfigurationError(
            f"precision, accumulate, activation_checkpointing and compile are for torch modules, not for {type(model).__name__}"
        )
    return model


def model_of(model: Any, train: TrainingData, seed: int) -> Model:
    """Return a model that fits the data."""
    about: dict[str, Any] = {"input_shape": train.input_shape, "outputs": lambda: train.outputs, "task": train.task}
    if hasattr(train, "counts"):  # a text data set: the count of each word
        about["counts"] = train.counts
    about["label_values"] = getattr(train, "label_values", None)
    about |= {"seed": seed, "check_default_loss": partial(check_default_loss, train)}
    made = build_model(*named(model), **about) if isinstance(model, str | Mapping) else as_model(model, **about)
    loss = getattr(made, "loss", None)
    name = getattr(loss, "name", None)
    if name in INDICATOR_LOSSES:
        check_probabilities(train, name)
    if getattr(loss, "task", None) == "regression" and getattr(loss, "task_is_known", False):
        check_values(train, str(name))
    if loss is not None and getattr(loss, "targets", None) == "classes":
        check_ignored(train, getattr(loss.function, "ignore_index", IGNORED))
    return made

"""Conversion of users' models (a name, a factory, a torch module, an estimator) to a `Model`."""

from __future__ import annotations

import copy
import importlib
import inspect
import math
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError
from chimera.core.registry import checked_options, load_object
from chimera.models.instantiation import instantiate
from chimera.models.linear_estimator import estimator_task
from chimera.models.loss import LossFunction
from chimera.models.losses import INDICATOR_LOSSES, takes_values
from chimera.models.metrics import Metrics
from chimera.models.model import MODELS, Model, Task
from chimera.models.sklearn_model import SklearnModel
from chimera.models.step import Step

Outputs: TypeAlias = int | Callable[[], int]
"""The number of classes or target columns; or a function, if counting takes long, that is called for models that need it."""

LabelValues: TypeAlias = tuple[str | int | bool, ...] | None

_METHODS = ("parameters", "load", "gradient", "evaluate", "predict", "buffers", "load_buffers")
ADAPTER_OPTIONS = ("loss", "metrics", "buffers", "step")


def build_model(
    name: str,
    options: Mapping[str, Any],
    *,
    input_shape: tuple[int, ...],
    outputs: Outputs,
    task: Task,
    seed: int,
    counts: NDArray[np.int64] | None = None,
    check_default_loss: Callable[[], None] | None = None,
    label_values: LabelValues = None,
) -> Model:
    """Return the model ``name`` for a data set.

    Parameters
    ----------
    name : name in `MODELS`, or ``package.module:factory`` or ``file.py:factory``.
    options : the user's options of the factory. ``loss``, ``metrics``, ``buffers`` and ``step`` go to the adapter, such as
        `TorchModel`, unless the factory has parameters of these names.
    input_shape, outputs, task, seed, counts : passed to a factory that has parameters of these names, unless the user set
        them. ``outputs`` is the number of classes or target columns; ``counts`` is the number of samples of each class, if
        known. A factory that does not always need the outputs has a parameter ``count_outputs``, a function that returns them.
    check_default_loss, label_values : see `as_model`.

    Raises
    ------
    ConfigurationError : unknown names or options, a factory that raises or that returns no model.
    """
    entry = MODELS.find(name)
    own, adapter_options = dict(options), dict[str, Any]()
    if _is_instance(entry.factory):
        thing = copy.deepcopy(entry.factory)  # each worker gets a copy
        adapter_options = {key: own.pop(key) for key in ADAPTER_OPTIONS if key in own}
        if own:
            raise ConfigurationError(
                f"{name!r} is a {type(thing).__name__}, not a factory: it has no option {next(iter(own))!r}"
            )
    else:
        taken = _parameters(entry.factory)
        adapter_options = {key: own.pop(key) for key in ADAPTER_OPTIONS if key in own and key not in taken}
        if entry.requires is not None:
            importlib.import_module(entry.requires)  # before the call, so that the seed reaches it
        thing = _call(
            entry.factory, own, name, input_shape, _output_count(outputs, adapter_options), task, seed, counts,
            single_logit=adapter_options.get("loss") in INDICATOR_LOSSES,
        )  # fmt: skip
    about: dict[str, Any] = {"task": task, "outputs": outputs, "input_shape": input_shape, "seed": seed}
    about["label_values"] = label_values
    return as_model(thing, check_default_loss=check_default_loss, **about, **adapter_options)


def as_model(
    thing: Any,
    *,
    task: Task,
    outputs: Outputs,
    input_shape: tuple[int, ...],
    loss: str | LossFunction | None = None,
    metrics: Metrics | None = None,
    buffers: str | None = None,
    step: str | Step | None = None,
    seed: int = 0,
    check_default_loss: Callable[[], None] | None = None,
    label_values: LabelValues = None,
) -> Model:
    """Return a `Model` for a torch module, a scikit-learn estimator, a `Model`, or a class or function that returns one.

    A class or function is called under ``seed``, with those of ``input_shape``, ``outputs``, ``task`` and ``seed`` that it has
    parameters for. ``loss``, ``metrics``, ``buffers`` and ``step`` are as in `TorchModel`; their defaults depend on the task.
    ``check_default_loss`` raises if the default loss for values does not fit the targets. ``label_values`` are the labels of
    the class indices, which become ``classes_`` of an estimator.

    Raises
    ------
    ConfigurationError : ``thing`` is something else, or an option does not apply to it.
    """
    if not _is_instance(thing) and callable(thing):
        name = str(getattr(thing, "__qualname__", type(thing).__name__))
        thing = _call(thing, {}, name, input_shape, outputs, task, seed)
    what = type(thing).__name__
    if _is_module(thing):
        step = load_object(step) if isinstance(step, str) else step
        return _torch_model(
            thing, task, outputs, loss, check_default_loss,
            step=step, metrics=metrics, buffers=buffers or "average", seed=seed,
        )  # fmt: skip
    given = {"loss": loss, "metrics": metrics, "buffers": buffers, "step": step}
    if _is_estimator(thing):
        _refuse(given, ("loss", "buffers", "step"), f"{what} is a scikit-learn estimator: set its own parameters")
        return _estimator_model(thing, task, outputs, input_shape, metrics, seed, label_values)
    if _is_model(thing):
        _refuse(given, ("loss", "metrics", "buffers", "step"), f"{what} is a complete model: set it where that is made")
        if hasattr(thing, "fit_task"):
            thing.fit_task(task)
        return cast(Model, thing)
    raise ConfigurationError(
        f"cannot make a model of {thing!r} ({what}): give a torch.nn.Module, a scikit-learn estimator with partial_fit, "
        "an object with the methods of chimera.models.model.Model, or a class or function that makes one of these"
    )


def _torch_model(
    module: Any,
    task: Task,
    outputs: Outputs,
    loss: str | LossFunction | None,
    check_default_loss: Callable[[], None] | None,
    **options: Any,
) -> Model:
    from chimera.models.lightning.hooks import is_lightning
    from chimera.models.torch_model import TorchModel

    if loss is None:
        own = options["step"] is not None or is_lightning(module)
        if task == "regression" and check_default_loss is not None and not own:
            check_default_loss()
        loss = "cross-entropy" if task == "classification" else "mse"
    if task == "regression" and takes_values(loss, _count(outputs)):
        return TorchModel(module, loss=loss, **options)  # the loss determines the task
    return TorchModel(module, loss=loss, task=task, **options)


def _estimator_model(
    estimator: Any,
    task: Task,
    outputs: Outputs,
    input_shape: tuple[int, ...],
    metrics: Metrics | None,
    seed: int,
    labels: LabelValues,
) -> SklearnModel:
    count = _count(outputs)
    if (meant := estimator_task(estimator)) != task:
        raise ConfigurationError(f"{type(estimator).__name__} is for {meant}, the data are for {task}")
    if task == "regression" and count != 1:
        raise ConfigurationError(f"{type(estimator).__name__} has one target, the data have {count}")
    classes = np.arange(count) if task == "classification" else None
    features = math.prod(input_shape)
    return SklearnModel(estimator, classes=classes, labels=labels, n_features=features, metrics=metrics, seed=seed)


def _refuse(given: Mapping[str, Any], names: tuple[str, ...], reason: str) -> None:
    for name in names:
        if given[name] is not None:
            raise ConfigurationError(f"the option {name!r} cannot be set here: {reason}")


def _call(
    factory: Callable[..., Any],
    options: Mapping[str, Any],
    name: str,
    input_shape: tuple[int, ...],
    outputs: Outputs,
    task: Task,
    seed: int,
    counts: NDArray[np.int64] | None = None,
    *,
    single_logit: bool = False,
) -> Any:
    """Call a factory with the user's options, after checking them, and with the properties of the data set."""
    known: dict[str, Any] = {"input_shape": tuple(input_shape), "outputs": outputs, "task": task, "seed": seed}
    known["count_outputs"] = partial(_count, outputs)
    if counts is not None:
        known["counts"] = counts
    taken = [key for key in known if key in _parameters(factory) and key not in options]
    filled = {key: _count(outputs) if key == "outputs" else known[key] for key in taken}
    words = "counts" in filled  # a model of words checks its vocabulary
    if filled.get("outputs") == 1 and task == "classification" and not (single_logit or words):
        raise ConfigurationError(
            f"model {name!r}: all samples have the same class, and a classification needs two or more"
        )
    checked = checked_options(f"model {name!r}", factory, options, filled)
    return instantiate(factory, checked | filled, seed=seed, name=name)


def _parameters(factory: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(factory).parameters
    except (TypeError, ValueError) as error:
        name = getattr(factory, "__name__", type(factory).__name__)
        raise ConfigurationError(f"{name!r} is not a model factory: it must be a class or a function") from error


def _output_count(outputs: Outputs, adapter_options: Mapping[str, Any]) -> Outputs:
    """Return the number of outputs: 1, not 2, if two classes are trained as a single logit."""
    return 1 if adapter_options.get("loss") in INDICATOR_LOSSES and _count(outputs) == 2 else outputs


def _count(outputs: Outputs) -> int:
    return outputs if isinstance(outputs, int) else outputs()


def _is_instance(thing: Any) -> bool:
    return _is_module(thing) or _is_estimator(thing) or _is_model(thing)


def _is_module(thing: Any) -> bool:
    torch = sys.modules.get("torch")  # if torch is not imported, no object is a module
    return torch is not None and isinstance(thing, torch.nn.Module)


def _is_estimator(thing: Any) -> bool:
    base = sys.modules.get("sklearn.base")
    return base is not None and isinstance(thing, base.BaseEstimator)


def _is_model(thing: Any) -> bool:
    made = not inspect.isclass(thing) and hasattr(thing, "layout")
    return made and all(callable(getattr(thing, method, None)) for method in _METHODS)

"""Optimizers by name or object, converted to tables that any process and file can hold."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Mapping
from typing import Any

from chimera.core.errors import ConfigurationError


def optimizer_table(given: Any, default: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``name`` and options of an optimizer.

    Parameters
    ----------
    given : a name, a table, a class of optimizers like those of torch, a `functools.partial` of one with its options, or an
        instance. Of an instance only class and options are used: the optimizer will step the parameters of the run.
        None is the default. A table without a name changes options of the default.
    default : ``name`` and options of the default.

    Raises
    ------
    ConfigurationError : it is none of these; or no other process can import the class; or the parameter groups of an instance
        differ.
    """
    if given is None:
        return dict(default)
    if isinstance(given, str):
        return {"name": given}
    if isinstance(given, Mapping):
        return dict(given) if "name" in given else {**default, **given}
    if isinstance(given, functools.partial) and inspect.isclass(given.func) and not given.args:
        return {"name": _name_of(given.func), **_plain(given.keywords)}
    if inspect.isclass(given) and callable(getattr(given, "step", None)):
        return {"name": _name_of(given)}
    if hasattr(given, "param_groups") and hasattr(given, "defaults"):
        return {"name": _name_of(type(given)), **_plain(_options_of(given))}
    raise ConfigurationError(
        f"{given!r} is no optimizer: give a name, a table, a class of torch.optim, a functools.partial of one, or an instance"
    )


def _name_of(kind: type) -> str:
    """Return the name by which any process can import a class."""
    module = sys.modules[kind.__module__]
    if kind.__module__.startswith("torch.optim.") and hasattr(sys.modules["torch.optim"], kind.__name__):
        return kind.__name__
    if "<locals>" in kind.__qualname__ or "." in kind.__qualname__:
        raise ConfigurationError(
            f"workers cannot find the optimizer {kind.__qualname__}: define it at the top of a module"
        )
    place = kind.__module__ if kind.__module__ != "__main__" else getattr(module, "__file__", None)
    if place is None:
        raise ConfigurationError(f"workers cannot find the optimizer {kind.__name__}: put it into a file")
    return f"{place}:{kind.__name__}"


def _options_of(optimizer: Any) -> dict[str, Any]:
    """Return the learning rate of an instance, and the options that differ from the defaults of its class."""
    known = inspect.signature(type(optimizer)).parameters
    groups = [{k: v for k, v in group.items() if k in known and k != "params"} for group in optimizer.param_groups]
    if any(group != groups[0] for group in groups):
        raise ConfigurationError(
            f"{type(optimizer).__name__} has groups of parameters with different options: a run steps all parameters alike"
        )
    return {k: v for k, v in groups[0].items() if v is not None and (k == "lr" or v != known[k].default)}


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with lists for tuples, and numbers for tensors of one element."""
    return {
        key: [*value] if isinstance(value, tuple) else value.item() if hasattr(value, "item") else value
        for key, value in options.items()
    }

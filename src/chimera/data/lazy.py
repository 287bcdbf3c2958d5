"""Sources of data whose samples are read one by one, during training."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from chimera.core.errors import ConfigurationError
from chimera.data.iterable import IterableSamples, counted, is_iterable
from chimera.data.nested_arrays import NestedArrays, is_nested
from chimera.data.readers import sources
from chimera.data.samples import SampleDataset
from chimera.data.table_samples import lazy_table

_OF_TABLES = {
    "target",
    "task",
    "classes",
    "like",
    "name",
    "drop",
    "labels",
    "groups",
}  # the others have no effect on tables


def is_lazy(source: Any) -> bool:
    """Return whether the samples of a source are read one by one.

    Raises
    ------
    ConfigurationError : a data loader, whose batches and order would not be those of the run.
    """
    if hasattr(source, "dataset") and hasattr(source, "batch_sampler"):
        raise ConfigurationError(
            "a DataLoader has its own batches and order, which workers cannot share: give its data set (loader.dataset), and "
            "batch_size to the run"
        )
    if inspect.isgenerator(source):
        raise ConfigurationError(
            f"the generator {source.__name__!r} can be read once only: give the function that makes it, without calling it"
        )
    known = isinstance(source, SampleDataset | IterableSamples) or is_iterable(source) or is_nested(source)
    return known or sources.is_sampled(source) or sources.is_large_parquet(source)


def lazy_dataset(source: Any, reading: Mapping[str, Any]) -> SampleDataset | IterableSamples:
    """Return a source as a data set; ``reading`` are options of `Dataset.of`.

    ``name`` applies to every source, ``labels`` and ``groups`` also to a map-style one (see `SampleDataset`), and more
    to a table.

    Raises
    ------
    ConfigurationError : another option is set, or an iterable data set is too long to count.
    """
    if isinstance(source, SampleDataset | IterableSamples):
        return source
    if sources.is_large_parquet(source):
        return lazy_table(source, **{key: value for key, value in reading.items() if key in _OF_TABLES})
    kind = getattr(source, "__name__", type(source).__name__)
    applied = ("name",) if is_iterable(source) else ("name", "labels", "groups")
    if unused := [key for key, value in reading.items() if value is not None and key not in applied]:
        raise ConfigurationError(
            f"{kind} is read sample by sample, so the options {', '.join(unused)} do not apply: change it before"
        )
    name = reading.get("name") or kind
    if is_nested(source):
        return NestedArrays(source).dataset(
            reading.get("name") or "arrays", reading.get("labels"), reading.get("groups")
        )
    if not is_iterable(source):
        return SampleDataset(source, labels=reading.get("labels"), groups=reading.get("groups"), name=name)
    if hasattr(source, "__len__"):
        return IterableSamples(source, len(source), name=name)
    made = IterableSamples(source, counted(source, name), name=name)
    made.found = made.samples
    return made


def divisible_dataset(source: Any, reading: Mapping[str, Any]) -> SampleDataset:
    """Return a source as a data set that can be split, see `lazy_dataset`.

    Raises
    ------
    ConfigurationError : see `lazy_dataset`; or the source is read in sequence.
    """
    if isinstance(source, IterableSamples) or is_iterable(source):
        name = getattr(source, "name", None) or getattr(source, "__name__", type(source).__name__)
        raise ConfigurationError(
            f"{name!r} is read in sequence, so no test part can be split off: give a pair (train, test)"
        )
    data = lazy_dataset(source, reading)
    assert isinstance(data, SampleDataset)
    return data

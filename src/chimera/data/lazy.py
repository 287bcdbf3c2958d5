"""Sources of data whose samples are read one by one, during training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chimera.core.errors import ConfigurationError
from chimera.data.iterable import IterableSamples, is_iterable
from chimera.data.readers import sources
from chimera.data.samples import SampleDataset


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
    return isinstance(source, SampleDataset | IterableSamples) or is_iterable(source) or sources.is_sampled(source)


def lazy_dataset(source: Any, reading: Mapping[str, Any]) -> SampleDataset | IterableSamples:
    """Return a source as a data set; ``reading`` are options of `Dataset.of`, of which ``name`` applies.

    For a map-style source, ``labels`` and ``groups`` apply too, see `SampleDataset`.

    Raises
    ------
    ConfigurationError : another option is set, or the number of samples of an iterable data set is not known.
    """
    if isinstance(source, SampleDataset | IterableSamples):
        return source
    kind = getattr(source, "__name__", type(source).__name__)
    applied = ("name",) if is_iterable(source) else ("name", "labels", "groups")
    if unused := [key for key, value in reading.items() if value is not None and key not in applied]:
        raise ConfigurationError(
            f"{kind} is read sample by sample, so the options {', '.join(unused)} do not apply: change it before"
        )
    name = reading.get("name") or kind
    if not is_iterable(source):
        return SampleDataset(source, labels=reading.get("labels"), groups=reading.get("groups"), name=name)
    if not hasattr(source, "__len__"):
        raise ConfigurationError(
            f"{kind} is read in sequence, and its number of samples per epoch is not known: give chimera.IterableSamples(data, "
            "samples=N)"
        )
    return IterableSamples(source, len(source), name=name)


def whole_of(data: SampleDataset | IterableSamples) -> SampleDataset:
    """Return a data set that can be split; raise ConfigurationError for one that is read in sequence."""
    if isinstance(data, IterableSamples):
        raise ConfigurationError(
            f"{data.name!r} is read in sequence, so no test part can be split off: give a pair (train, test)"
        )
    return data

"""One line about the data of a run: what was understood."""

from __future__ import annotations

from typing import Any

from chimera.data.dataset import Dataset
from chimera.data.iterable import IterableSamples
from chimera.data.samples import SampleDataset
from chimera.data.split import Split
from chimera.data.table_samples import TableSamples

_MOST_NAMES = 5


def described(split: Split) -> str:
    """Return one line, such as ``data: churn.csv · 800 train, 200 test · 12 features (2 one-hot) · 2 classes: no, yes``."""
    train: Any = split.train
    parts = [str(getattr(train, "name", "data")), f"{len(train):,} train, {len(split.test):,} test"]
    if isinstance(train, Dataset):
        parts += [_inputs(train), _targets(train)]
    elif isinstance(train, TableSamples):
        parts += [_inputs(train), _targets(train), "rows are read by the workers"]
    elif isinstance(train, SampleDataset | IterableSamples):
        parts += ["samples are read by the workers", *([_classes(train.classes)] if train.classes else [])]
    return f"data: {' · '.join(parts)}"


def _inputs(data: Dataset | TableSamples) -> str:
    if data.features is None:
        found = "inputs " + " x ".join(map(str, data.input_shape))
    else:
        one_hot = len({name.partition("=")[0] for name in data.features if "=" in name})
        columns = f" ({one_hot} {'column is' if one_hot == 1 else 'columns are'} one-hot)" if one_hot else ""
        found = f"{len(data.features)} {'feature' if len(data.features) == 1 else 'features'}{columns}"
    return found + (", standardized" if data.input_scaling is not None else "")


def _targets(data: Dataset | TableSamples) -> str:
    if data.classes is not None:
        return _classes(data.classes)
    return f"{data.outputs} {'value' if data.outputs == 1 else 'values'} to predict"


def _classes(names: tuple[str, ...]) -> str:
    listed = ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
    return f"{len(names)} {'class' if len(names) == 1 else 'classes'}: {listed}"

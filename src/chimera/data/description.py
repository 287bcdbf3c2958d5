"""One line that describes the data of a run as it was read."""

from __future__ import annotations

from typing import Any

from chimera.core.counted import counted
from chimera.data.dataset import Dataset
from chimera.data.iterable import IterableSamples
from chimera.data.row_labels import RowLabels
from chimera.data.samples import SampleDataset
from chimera.data.split import Split
from chimera.data.table_samples import TableSamples

_MAX_NAMES = 5


def described(split: Split) -> str:
    """Return one line, such as ``data: churn.csv · 800 train, 200 test · 12 features (2 one-hot) · 2 classes: no, yes``."""
    train: Any = split.train
    parts = [str(getattr(train, "name", "data")), f"{_size(train)} train, {_size(split.test)} test"]
    if isinstance(train, Dataset):
        parts += [_inputs(train), _targets(train)]
    elif isinstance(train, TableSamples):
        parts += [_inputs(train), _targets(train), "rows are read by the workers"]
    elif isinstance(train, SampleDataset | IterableSamples):
        parts += ["samples are read by the workers", *([_classes(train.classes)] if train.classes else [])]
    if isinstance(train, Dataset | SampleDataset):
        rows = getattr(train, "rows", None)
        marks = {"label": train.labels, "group": train.groups}
        parts += [_marks(what, given.take(rows)) for what, given in marks.items() if given is not None]
    return f"data: {' · '.join(parts)}"


def _size(data: Any) -> str:
    """Return the number of samples; for data read in sequence, the one that was found, or else the one that was declared."""
    if not isinstance(data, IterableSamples) or data.found == len(data):
        return f"{len(data):,}"
    return f"{len(data):,} declared" if data.found is None else f"{data.found:,} (of {len(data):,} declared)"


def _inputs(data: Dataset | TableSamples) -> str:
    if data.features is None:
        found = "inputs " + " x ".join(map(str, data.input_shape))
    else:
        one_hot = len({name.partition("=")[0] for name in data.features if "=" in name})
        columns = f" ({counted(one_hot, 'one-hot column')})" if one_hot else ""
        found = counted(len(data.features), "feature") + columns
    return found + (", standardized" if data.input_scaling is not None else "")


def _targets(data: Dataset | TableSamples) -> str:
    if data.classes is not None:
        return _classes(data.classes)
    return f"{counted(data.outputs, 'value')} to predict"


def _marks(what: str, marks: RowLabels) -> str:
    """Return the number of labels or groups, and the column or function that they come from."""
    text = counted(marks.count, what)
    return text + (f" from {marks.source}" if marks.source else "") + (" (not an input)" if marks.dropped else "")


def _classes(names: tuple[str, ...]) -> str:
    listed = ", ".join(names[:_MAX_NAMES]) + (", ..." if len(names) > _MAX_NAMES else "")
    return f"{counted(len(names), 'class', 'classes')}: {listed}"

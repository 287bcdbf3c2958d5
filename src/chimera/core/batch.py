"""Batches: nestings of tuples, lists, mappings and objects with fields, with arrays or tensors at their leaves.

Objects with fields are instances of dataclasses, of ``attrs`` classes, and of ``msgspec.Struct``.

A leaf is an array or tensor with one row per sample, or a plain value without rows, such as a text.
Only this module and the adapters of models read the parts of a batch.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import DataError

Batch: TypeAlias = Any
"""A nesting of tuples, lists, mappings and objects with fields. Leaves are arrays or tensors; often ``(inputs, targets)``."""

TARGET_KEYS = ("labels", "label", "targets", "target", "y")
"""Keys under which a mapping has its targets; the first one that is present is used."""


def leaves(batch: Batch) -> Iterator[Any]:
    """Yield the leaves of a batch that have rows, in order."""
    if hasattr(batch, "shape"):
        if len(batch.shape):
            yield batch
    else:
        for part in _parts(batch):
            yield from leaves(part)


def samples_in(batch: Batch) -> int:
    """Return the number of samples of a batch: the most frequent length of the arrays that are its direct parts.

    Of equally frequent lengths it is the first one. Of a mapping with an array of targets, see `TARGET_KEYS`, it is the length
    of the targets. Other arrays may have other lengths, such as the concatenated tokens of all samples. Arrays inside lists,
    such as the boxes of each image, count only if no array is a direct part: then it is the length of the first leaf.

    Raises
    ------
    DataError : the batch has no leaf with rows.
    """
    if type(batch) is tuple and len(batch) == 2 and hasattr(batch[0], "shape"):  # the most frequent case
        return len(batch[0])
    key = target_key(batch)
    if key is not None and len(getattr(batch[key], "shape", ())):
        return len(batch[key])
    if lengths := [len(part) for part in _parts(batch) if len(getattr(part, "shape", ()))]:
        return Counter(lengths).most_common(1)[0][0]
    for leaf in leaves(batch):
        return len(leaf)
    raise DataError(
        f"a batch of type {type(batch).__name__} has no array or tensor, so the number of its samples is unknown"
    )


def mapped(function: Callable[[Any], Any], batch: Batch) -> Batch:
    """Return a batch of the same nesting, with ``function`` of each leaf that has a shape; other leaves are unchanged.

    A mapping that cannot be changed, such as the arrays of `numpy.load`, becomes a dictionary.
    """
    if hasattr(batch, "shape"):
        return function(batch)
    if isinstance(batch, Mapping):
        changed = {key: mapped(function, part) for key, part in batch.items()}
        if type(batch) is dict or not isinstance(batch, MutableMapping):
            return changed
        made: Any = copy.copy(batch)
        made.update(changed)
        return made
    if isinstance(batch, tuple | list):
        parts = [mapped(function, part) for part in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    names = _fields(batch)
    if names is None:
        return batch
    made = copy.copy(batch)
    put = msgspec.structs.force_setattr if isinstance(batch, msgspec.Struct) else object.__setattr__
    for name in names:
        put(made, name, mapped(function, getattr(batch, name)))
    return made


def rows_of(batch: Batch, rows: slice | NDArray[np.int64]) -> Batch:
    """Return a batch of some of the samples: these rows of each leaf that has rows."""
    return mapped(lambda leaf: leaf[rows] if len(leaf.shape) else leaf, batch)


def pieces_of(batch: Batch, rows: int) -> Iterator[Batch]:
    """Yield the samples of a batch, or of data that reads its own batches, in pieces of at most ``rows`` samples.

    Data that reads its own batches has a method ``pieces(rows)``.

    Raises
    ------
    DataError : the batch has more rows, and its leaves have different numbers of rows, so it is not known how to cut them.
    """
    own = getattr(batch, "pieces", None)
    if own is not None:
        yield from own(rows)
        return
    count = samples_in(batch)
    if count <= rows:
        yield batch
        return
    if len(lengths := dict.fromkeys(len(leaf) for leaf in leaves(batch))) > 1:
        raise DataError(
            f"a batch of {count} samples cannot be cut into pieces of {rows}: its arrays have "
            f"{', '.join(map(str, lengths))} rows; set accumulate to 1 to train, and evaluate or predict at most {rows} "
            "samples at once"
        )
    for begin in range(0, count, rows):
        yield rows_of(batch, slice(begin, begin + rows))


def inputs_of(batch: Batch) -> Any:
    """Return the inputs of a batch: of a sequence all parts but the last (one part alone is not nested), else the batch."""
    if isinstance(batch, tuple | list) and len(batch) > 1:
        return batch[0] if len(batch) == 2 else tuple(batch[:-1])
    return batch


def targets_of(batch: Batch) -> Any:
    """Return the targets of a batch: the last part of a sequence, or a mapping's value under one of `TARGET_KEYS`.

    None if there are none.
    """
    if isinstance(batch, tuple | list):
        return batch[-1] if len(batch) > 1 else None
    key = target_key(batch)
    return None if key is None else batch[key]


def pair_of(batch: Batch, user: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return inputs and targets as two arrays; ``user`` names the code that needs them in messages.

    Raises
    ------
    DataError : the batch has another form.
    """
    if isinstance(batch, tuple | list) and len(batch) == 2 and all(hasattr(part, "shape") for part in batch):
        inputs, targets = (part if isinstance(part, np.ndarray) else np.asarray(part) for part in batch)
        return inputs, targets
    raise DataError(
        f"{user} needs batches of one array of inputs and one of targets, not of type {type(batch).__name__}"
    )


def check_lengths(inputs: Any, targets: Any) -> None:
    """Raise DataError if there are no rows to evaluate, or inputs, any nesting, and targets differ in length."""
    rows = samples_in(inputs)
    if not rows or rows != len(targets):
        raise DataError(f"cannot evaluate {rows} rows of inputs with {len(targets)} targets")


def with_targets(batch: Batch, targets: Any) -> Batch:
    """Return a copy of a batch with other targets.

    Raises
    ------
    DataError : the batch has no targets.
    """
    if isinstance(batch, tuple | list) and len(batch) > 1:
        parts = (*batch[:-1], targets)
        return type(batch)(*parts) if hasattr(batch, "_fields") else parts
    key = target_key(batch)
    if key is None:
        raise DataError(f"a batch of type {type(batch).__name__} has no targets")
    made = copy.copy(batch) if isinstance(batch, MutableMapping) else dict(batch)
    made[key] = targets
    return made


def target_key(batch: Batch) -> str | None:
    """Return the key of a mapping's targets; None if it has none, or is no mapping."""
    if not isinstance(batch, Mapping):
        return None
    return next((key for key in TARGET_KEYS if key in batch), None)


def _parts(batch: Batch) -> Iterator[Any]:
    if isinstance(batch, Mapping):
        yield from batch.values()
    elif isinstance(batch, tuple | list):
        yield from batch
    elif (names := _fields(batch)) is not None:
        for name in names:
            yield getattr(batch, name)


def _fields(batch: Batch) -> Sequence[str] | None:
    """Return the names of the fields of an object; None if its class declares none."""
    kind = type(batch)
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    if (attributes := getattr(kind, "__attrs_attrs__", None)) is not None:
        return [attribute.name for attribute in attributes]
    return batch.__struct_fields__ if isinstance(batch, msgspec.Struct) else None

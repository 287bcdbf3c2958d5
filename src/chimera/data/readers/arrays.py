"""Conversion of arrays, tensors, lists and torch data sets to checked float32 inputs and targets."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import DataError

Task: TypeAlias = Literal["classification", "regression"]


def is_tensor(value: Any) -> bool:
    """Return whether ``value`` is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_array(value: Any) -> bool:
    """Return whether ``value`` is a NumPy array, a torch tensor, or a pandas frame or series."""
    pandas = sys.modules.get("pandas")
    frame = pandas is not None and isinstance(value, pandas.DataFrame | pandas.Series)
    return isinstance(value, np.ndarray) or is_tensor(value) or frame


def as_array(value: Any, what: str) -> NDArray[Any]:
    """Return ``value`` as an array of numbers or strings, without a copy if possible.

    Raises
    ------
    DataError : the value is a ragged list, or holds objects, complex numbers or dates.
    """
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise DataError(
            f"the {what} have {int(np.ma.getmaskarray(value).sum())} masked values: fill them in by filled()"
        )
    if is_tensor(value):
        array = _of_tensor(value, what)
    elif isinstance(value, list | tuple) and len(value) and is_tensor(value[0]):
        return as_array([as_array(item, what) for item in value], what)
    else:
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise DataError(f"the {what} are ragged: their rows do not all have the same shape ({error})") from error
    if array.dtype.kind == "O" and array.size:
        texts = [item for item in array.ravel().tolist() if isinstance(item, str)]
        if len(texts) == array.size:
            return array.astype(str)
        raise DataError(f"the {what} are objects, not numbers: give numbers, or a pandas frame for mixed columns")
    if array.dtype.kind not in "biufUS":
        raise DataError(f"the {what} are of type {array.dtype}: give real numbers")
    if array.ndim == 0:
        raise DataError(f"the {what} are a single value, {value!r}: give one row per sample")
    if not array.size:
        raise DataError(f"the {what} are empty, shape {array.shape}")
    return array


def _of_tensor(tensor: Any, what: str) -> NDArray[Any]:
    tensor = tensor.detach().cpu()
    try:
        return np.asarray(tensor.numpy())
    except TypeError:  # bfloat16 and sparse tensors have no counterpart in NumPy
        try:
            return np.asarray(tensor.to_dense().float().numpy())
        except (TypeError, RuntimeError) as error:
            raise DataError(f"the {what} are a tensor that NumPy cannot hold: {error}") from error


def as_inputs(value: Any, *, keep_integers: bool) -> NDArray[Any]:
    """Return features as float32, shape (n, ...), C-contiguous. One number per sample becomes a column.

    With ``keep_integers``, integers become int64 instead, such as indices into an embedding.
    """
    array = as_array(value, "inputs")
    if array.dtype.kind in "US":
        raise DataError(
            "the inputs are strings: give numbers, or a pandas frame, whose text columns become one-hot columns"
        )
    if keep_integers and array.dtype.kind in "iu":
        return np.ascontiguousarray(array, np.int64)
    if array.ndim == 1:
        array = array[:, np.newaxis]
    return _as_float32(array, "inputs")


def _as_float32(array: NDArray[Any], what: str) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # a value that is too large becomes infinite, and is reported below
        converted = np.ascontiguousarray(array, np.float32)
    finite = np.isfinite(converted)
    if not finite.all():
        bad = np.argwhere(~finite)
        place = f"row {bad[0, 0]}" + (f", column {bad[0, 1]}" if converted.ndim == 2 and converted.shape[1] > 1 else "")
        count = f"{len(bad)} of {finite.size} values"
        raise DataError(
            f"the {what} are not all finite: {count} are NaN or infinite (as float32), the first in {place}"
        )
    return converted


def as_targets(
    value: Any, *, task: Task | None, classes: int | Sequence[str] | None
) -> tuple[NDArray[Any], tuple[str, ...] | None]:
    """Return targets and the names of the classes: int64 indices and names, or float32 values and None.

    Without a ``task``, one string, integer or Boolean per sample is a class, anything else a value. Integers from 0 with
    fewer gaps than classes are class indices already. Other integers are labels, which get indices in sorted order. With
    ``classes``, labels are looked up there by name; if that fails, they are taken as indices.

    Raises
    ------
    DataError : the targets do not suit the task, or have so many different integers that the task is ambiguous.
    """
    array = as_array(value, "targets")
    if array.ndim == 2 and array.shape[1] == 1 and array.dtype.kind != "f":
        array = array[:, 0]
    if task is None:
        named = classes is not None or array.dtype.kind in "biuUS"
        task = "classification" if array.ndim == 1 and named else "regression"
        if task == "classification" and classes is None and array.dtype.kind in "iu":
            _check_few(len(np.unique(array)), len(array))
    if task == "regression":
        if array.dtype.kind in "US":
            raise DataError(f"the targets are strings ({str(array.flat[0])!r}, ...), which a regression cannot predict")
        if array.ndim > 2:
            raise DataError(f"the targets have shape {array.shape}: give one value, or one row of values, per sample")
        return _as_float32(array, "targets"), None
    if array.ndim != 1:
        raise DataError(f"the targets of a classification have shape {array.shape}: give one label per sample")
    return class_indices(array, classes)


def _check_few(different: int, samples: int) -> None:
    if different > max(20, samples // 4):  # probably counts, years or money; a wrong guess would train a useless model
        raise DataError(
            f"the targets are {different} different integers in {samples} samples: set whether they are values or classes "
            "with task='regression' or task='classification'"
        )


def class_indices(
    array: NDArray[Any], classes: int | Sequence[str] | None
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return the index of each label, shape (n,), and the names of the classes, see `as_targets`."""
    if array.dtype.kind == "f":
        _as_float32(array, "targets")  # raises if they are not finite
        array = array.astype(np.int64) if (array == np.floor(array)).all() else array.astype(str)
    labels, places = np.unique(array, return_inverse=True)
    numbers = array.dtype.kind in "iu"
    if isinstance(classes, int):
        classes = [str(index) for index in range(classes)]
    elif classes is None and numbers and labels[0] == 0 and labels[-1] < 2 * len(labels):
        classes = [str(index) for index in range(int(labels[-1]) + 1)]
    texts = [label.decode() if isinstance(label, bytes) else str(label) for label in labels.tolist()]
    names = tuple(texts if classes is None else classes)
    known = {name: index for index, name in enumerate(names)}
    if numbers and not set(texts) <= set(known):
        known = {str(index): index for index in range(len(names))}
    unknown = [place for place, text in enumerate(texts) if text not in known]
    if unknown:
        row = int(np.flatnonzero(places == unknown[0])[0])
        raise DataError(f"the target {texts[unknown[0]]!r} in row {row} is none of the classes {_listed(names)}")
    return np.array([known[text] for text in texts], np.int64)[places], names


def label_values(array: NDArray[Any], names: tuple[str, ...] | None) -> tuple[str | int | bool, ...] | None:
    """Return the label of each class in the type of the targets ``array``; None if the targets are class indices or values.

    They are also None if they are not in sorted order, as after a choice of ``classes``: scikit-learn sorts the labels of an
    estimator.
    """
    if names is None:
        return None
    values: tuple[str | int | bool, ...] = names
    if array.dtype.kind == "b":
        values = tuple(name == "True" for name in names)
    elif array.dtype.kind not in "US":
        try:
            values = tuple(map(int, names))
        except ValueError:  # the user named the indices, or the labels are fractions
            return None
    are_indices = array.dtype.kind != "b" and values == tuple(range(len(names)))
    return None if are_indices or list(values) != sorted(set(values)) else values


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (f", ... ({len(names)} in all)" if len(names) > 10 else "")


def from_torch_dataset(source: Any) -> tuple[Any, Any]:
    """Return the inputs and targets of a map-style data set, such as those of torch, each stacked to one sequence."""
    tensors = getattr(source, "tensors", None)
    if isinstance(tensors, tuple):
        if len(tensors) != 2:
            raise DataError(f"the TensorDataset holds {len(tensors)} tensors: two are needed, inputs and targets")
        return tensors[0], tensors[1]
    inputs, targets = [], []
    for row in range(len(source)):
        item = source[row]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise DataError(f"item {row} of the {type(source).__name__} is not a pair (input, target)")
        inputs.append(as_array(item[0], "inputs") if np.ndim(item[0]) else _scalar(item[0]))
        targets.append(as_array(item[1], "targets") if np.ndim(item[1]) else _scalar(item[1]))
    return inputs, targets


def _scalar(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value

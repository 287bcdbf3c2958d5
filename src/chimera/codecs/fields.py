"""Validation of the fields of a received message, before decoding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from chimera.core.device import namespace
from chimera.core.errors import CodecError
from chimera.core.message import Encoded
from chimera.core.parameters import Flat, Layout

_MAX = 2.0**63


def output_for(encoded: Encoded, out: Flat | None) -> Flat:
    """Return memory for the decoded vector: ``out``, on any device, if given."""
    if out is None:
        return np.empty(encoded.size, np.float32)
    if out.shape != (encoded.size,) or out.dtype != namespace(out).float32:
        raise CodecError(f"{encoded.size} elements do not go into an array of {out.dtype} and shape {out.shape}")
    return out


def array(
    encoded: Encoded, index: int, dtype: DTypeLike, size: int | None = None, *, of: int | None = None
) -> NDArray[Any]:
    """Return an array of this type with one dimension; if given, it has ``size`` elements, and the message ``of`` arrays."""
    arrays = encoded.arrays
    if of is not None and len(arrays) != of:
        raise _wrong_count(encoded, of)
    if index >= len(arrays):
        raise CodecError(f"a {encoded.codec} message has {len(arrays)} arrays, too few")
    found = arrays[index]
    wanted = np.dtype(dtype)
    if not isinstance(found, np.ndarray) or found.dtype != wanted or found.ndim != 1:
        kind = f"{found.dtype} of shape {found.shape}" if isinstance(found, np.ndarray) else type(found).__name__
        raise CodecError(f"array {index} of a {encoded.codec} message is {kind}, not {wanted} of one dimension")
    if size is not None and found.size != size:
        raise CodecError(f"array {index} of a {encoded.codec} message has {found.size} elements, not {size}")
    return found if found.flags.c_contiguous else np.ascontiguousarray(found)


def count_arrays(encoded: Encoded, *allowed: int) -> int:
    """Return the number of arrays, if it is one of the allowed numbers."""
    if len(encoded.arrays) not in allowed:
        raise _wrong_count(encoded, *allowed)
    return len(encoded.arrays)


def _wrong_count(encoded: Encoded, *allowed: int) -> CodecError:
    return CodecError(f"a {encoded.codec} message has {len(encoded.arrays)} arrays, not {allowed}")


def number(encoded: Encoded, key: str, low: float = -math.inf, high: float = math.inf) -> float:
    """Return a finite number of the meta data within the limits."""
    value = encoded.meta.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not -_MAX < value < _MAX:
        raise CodecError(f"{key} of a {encoded.codec} message is {value!r}")
    if not low <= value <= high:
        raise CodecError(f"{key} of a {encoded.codec} message is {value!r}, not from {low} to {high}")
    return float(value)


def integer(encoded: Encoded, key: str, low: int, high: int) -> int:
    """Return an integer of the meta data within the limits."""
    value = number(encoded, key, low, high)
    if value != int(value):
        raise CodecError(f"{key} of a {encoded.codec} message is {value!r}, no whole number")
    return int(value)


def finite(encoded: Encoded, values: NDArray[Any], what: str) -> NDArray[Any]:
    """Return the values, if all of them are finite."""
    if not np.isfinite(values).all():
        raise CodecError(f"{what} of a {encoded.codec} message are not all finite")
    return values


def check_finite(values: Any) -> None:
    """Raise `CodecError` if one of these values, found in a vector to encode, is NaN or infinite."""
    if not np.isfinite(values).all():
        raise CodecError("a vector with NaN or infinity cannot be packed")


def tensor_bounds(layout: Layout, size: int) -> list[int]:
    """Return the bounds of the tensors in a vector, without empty tensors."""
    if layout.size != size:
        raise CodecError(f"a vector of {size} elements does not fit a layout of {layout.size}")
    return sorted({0, *layout.offsets, size}) if size else [0]


def lengths_of(bounds: Sequence[int]) -> tuple[NDArray[np.uint32], ...]:
    """Return the array of lengths from which a receiver computes the bounds; none if there is one tensor."""
    return (np.diff(bounds).astype(np.uint32),) if len(bounds) > 2 else ()


def bounds_of(encoded: Encoded, index: int) -> list[int]:
    """Return the bounds from the array of `lengths_of`, which is the last array and has the number ``index``."""
    if not encoded.size:
        count_arrays(encoded, index)
        return [0]
    if count_arrays(encoded, index, index + 1) == index:
        return [0, encoded.size]
    lengths = array(encoded, index, np.uint32)
    if lengths.size < 2 or lengths.min() == 0 or int(lengths.sum(dtype=np.uint64)) != encoded.size:
        raise CodecError(f"the lengths of a {encoded.codec} message do not add up to {encoded.size}")
    return [0, *np.cumsum(lengths, dtype=np.int64).tolist()]

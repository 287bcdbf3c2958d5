"""Conversion of lists of numbers in samples, and the first difference between samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np


def has_lists(sample: Any) -> bool:
    """Return whether a part of a sample is a list."""
    parts = _parts(sample)
    return parts is not None and any(type(part) is list or has_lists(part) for _, part in parts)


def lists_as_arrays(sample: Any) -> Any:
    """Return a sample with an array for each part that is a list of numbers, or of such lists of equal length.

    Lists of arrays or tensors are unchanged: they are several inputs. The sample itself may also be a list of its parts.
    """
    if isinstance(sample, Mapping):
        return {key: _converted(part) for key, part in sample.items()}
    if type(sample) in (tuple, list):
        return type(sample)(_converted(part) for part in sample)
    if isinstance(sample, tuple) and hasattr(sample, "_fields"):
        return type(sample)(*(_converted(part) for part in sample))
    return sample


def mismatch_in(samples: Sequence[Any], numbers: Sequence[int]) -> str | None:
    """Return the first difference of a sample from the first sample, in shape or type, or a part that no batch can hold.

    None if there is neither.
    """
    first = dict(_described(samples[0]))
    for sample, number in zip(samples[1:], numbers[1:], strict=True):
        for place, found in _described(sample):
            if place in first and first[place] != found:
                return f"{place} is {first[place]} in sample {numbers[0]} and {found} in sample {number}"
        if sample is None:
            return f"sample {number} is None"
    for place, found in first.items():
        if found == "None":
            return f"{place} is None in sample {numbers[0]}"
        if found.startswith("of type"):
            return f"{place} is {found} in sample {numbers[0]}: convert it to an array, a tensor or a number"
    return None


def _converted(part: Any) -> Any:
    if type(part) is not list:
        return lists_as_arrays(part)
    if _is_of_numbers(part):
        try:
            return np.array(part)
        except ValueError:  # inner lists of different lengths
            return part
    return [lists_as_arrays(each) for each in part]


def _is_of_numbers(part: Any) -> bool:
    while type(part) is list and part:
        part = part[0]
    return isinstance(part, bool | int | float | np.number | np.bool_)


def _parts(sample: Any) -> Sequence[tuple[Any, Any]] | None:
    if isinstance(sample, Mapping):
        return list(sample.items())
    return list(enumerate(sample)) if isinstance(sample, tuple | list) else None


def _described(sample: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Yield the place of each part of a sample, and its shape or type."""
    parts = _parts(sample)
    if type(sample) is list and place:
        yield place, f"a list of length {len(sample)}"
    elif parts is not None:
        kind = "" if isinstance(sample, Mapping) else "part "
        for key, part in parts:
            yield from _described(part, f"{place}, {kind}{key!r}" if place else f"{kind}{key!r}")
    elif hasattr(sample, "shape"):
        yield place or "the sample", f"of shape {tuple(sample.shape)}"
    else:
        yield place or "the sample", "None" if sample is None else _kind(sample)


def _kind(value: Any) -> str:
    plain = isinstance(value, bool | int | float | str | bytes | np.generic)
    return "a value" if plain else f"of type {type(value).__name__}"

"""Files of the safetensors format. Arrays are written one after the other: the library would make two copies of all first."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import DataError
from chimera.core.message import TYPES

_NAMES = {dtype: name for name, dtype in TYPES.items()}


def write_tensors(file: IO[bytes], arrays: Mapping[str, NDArray[Any]], about: Mapping[str, str] | None = None) -> None:
    """Write arrays by name, and ``about`` as what the format calls metadata."""
    header: dict[str, Any] = {"__metadata__": dict(about)} if about else {}
    # The widest elements first, so that each array begins at a multiple of its element's size, as the format wants it.
    ordered = dict(sorted(arrays.items(), key=lambda item: -item[1].itemsize))
    end = 0
    for name, array in ordered.items():
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": _NAMES[array.dtype.str], "shape": array.shape, "data_offsets": (begin, end)}
    told = msgspec.json.encode(header)
    told += b" " * (-len(told) % 8)
    file.write(len(told).to_bytes(8, "little"))
    file.write(told)
    for array in ordered.values():
        file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def read_tensors(source: str | Path | bytes) -> dict[str, NDArray[Any]]:
    """Return the arrays in a file, or in the bytes of one.

    Raises
    ------
    DataError : it is no such file, or holds elements of a type that NumPy lacks.
    OSError : it cannot be read.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load, load_file

    try:
        return load(source) if isinstance(source, bytes) else load_file(source)
    # The library raises the last four for types, and numbers of axes, that NumPy lacks.
    except (SafetensorError, KeyError, TypeError, AttributeError, ValueError) as error:
        place = "" if isinstance(source, bytes) else f"{source} "
        raise DataError(
            f"{place}is no safetensors file that can be read: {' '.join(str(error).split())[:300]}"
        ) from error

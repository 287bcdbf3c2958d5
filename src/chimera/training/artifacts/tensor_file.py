"""Reading and writing of safetensors files. Arrays are written one at a time; the library would copy all of them twice."""

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
    """Write arrays by name, and ``about`` as the metadata of the file."""
    header: dict[str, Any] = {"__metadata__": dict(about)} if about else {}
    # The widest elements first, so that each array starts at a multiple of its element size, as the format requires.
    ordered = dict(sorted(arrays.items(), key=lambda item: -item[1].itemsize))
    end = 0
    for name, array in ordered.items():
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": _NAMES[array.dtype.str], "shape": array.shape, "data_offsets": (begin, end)}
    encoded = msgspec.json.encode(header)
    encoded += b" " * (-len(encoded) % 8)
    file.write(len(encoded).to_bytes(8, "little"))
    file.write(encoded)
    for array in ordered.values():
        file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def read_about(path: str | Path) -> dict[str, str]:
    """Return the metadata of a file.

    Raises
    ------
    DataError : the content is not safetensors.
    OSError : the file cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            return dict(file.metadata() or {})
    except SafetensorError as error:
        raise DataError(f"{path} is not a readable safetensors file: {' '.join(str(error).split())[:300]}") from error


def read_tensors(source: str | Path | bytes) -> dict[str, NDArray[Any]]:
    """Return the arrays in a file, or in the bytes of one.

    Raises
    ------
    DataError : the content is not safetensors, or has elements of a type that NumPy lacks.
    OSError : the file cannot be read.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load, load_file

    try:
        return load(source) if isinstance(source, bytes) else load_file(source)
    # The library raises the last four for types and numbers of axes that NumPy does not support.
    except (SafetensorError, KeyError, TypeError, AttributeError, ValueError) as error:
        place = "" if isinstance(source, bytes) else f"{source} "
        raise DataError(f"{place}is not a readable safetensors file: {' '.join(str(error).split())[:300]}") from error

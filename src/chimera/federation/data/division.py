"""The division of a node's rows into training and test rows, by a hash of each row."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError
from chimera.core.private import make_folder, write
from chimera.core.safe_path import safe_path

SEED_FILE = "division.seed"
_BITS = 64


def divided(rows: Iterable[bytes], test_fraction: float, seed: int) -> NDArray[np.bool_]:
    """Return which rows are test rows.

    The part of a row follows from its content, the fraction and the seed alone. It does not change if rows are added, removed
    or sorted; rows of equal content are in the same part; and a larger fraction only turns training rows into test rows.

    Parameters
    ----------
    rows : the content of each row.
    test_fraction : share of the rows, on average; from 0 to below 1.
    seed : known to the node alone, so that no driver can determine the part of a row.

    Raises
    ------
    ConfigurationError : the fraction or the seed is out of range.
    """
    if not 0 <= test_fraction < 1:
        raise ConfigurationError(f"test_fraction is {test_fraction}: it must be at least 0 and below 1")
    if not 0 <= seed < 1 << _BITS:
        raise ConfigurationError(f"the seed of the division is {seed}: it must be at least 0 and below 2**{_BITS}")
    keyed = hashlib.blake2b(digest_size=_BITS // 8, key=seed.to_bytes(_BITS // 8, "big"), person=b"chimera test")
    limit, found = round(test_fraction * (1 << _BITS)), []
    for row in rows:
        own = keyed.copy()
        own.update(row)
        found.append(int.from_bytes(own.digest(), "big") < limit)
    return np.array(found, bool)


def own_seed(folder: Path) -> int:
    """Return the seed of a node's division, from a file in its folder; the first call draws it and writes the file.

    Keep the file: with another seed, rows that were test rows become training rows.

    Raises
    ------
    ConfigurationError : the file cannot be read or written, or holds something else.
    """
    path = safe_path(folder, SEED_FILE)
    try:
        if not path.exists():
            make_folder(folder)
            drawn = folder / f"{SEED_FILE}.{secrets.token_hex(8)}"
            write(drawn, secrets.token_hex(_BITS // 8).encode())
            with suppress(FileExistsError):  # another process was first
                os.link(drawn, path)
            drawn.unlink()
        text = path.read_text(encoding="ascii")
        if not re.fullmatch(rf"[0-9a-f]{{{_BITS // 4}}}", text):
            raise ConfigurationError(
                f"{path} holds no seed of {_BITS // 4} hexadecimal digits: put the original file back"
            )
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be used: {error}") from error
    return int(text, 16)


def contents_of_array(inputs: NDArray[Any]) -> Iterable[bytes]:
    """Return the content of each row of numbers as float32, as models read them; 1 and 1.0, and 0.0 and -0.0, are equal."""
    with np.errstate(over="ignore"):
        rows = np.ascontiguousarray(inputs.reshape(len(inputs), -1), np.float32) + np.float32(0)
    return (row.tobytes() for row in rows)


def contents_of_frame(frame: Any) -> Iterable[bytes]:
    """Return the content of each row of a table, independent of the order of its columns."""
    import pandas.api.types as kinds

    names = sorted(map(str, frame.columns))
    ordered = frame[names].infer_objects()
    numbers = [name for name in names if kinds.is_numeric_dtype(ordered[name].dtype)]
    texts = [ordered[name].astype(str).tolist() for name in names if name not in numbers]
    rows = contents_of_array(ordered[numbers].to_numpy(np.float64))
    if not texts:
        return rows
    joined = ("\0".join(parts).encode() for parts in zip(*texts, strict=True))
    return (row + text for row, text in zip(rows, joined, strict=True))

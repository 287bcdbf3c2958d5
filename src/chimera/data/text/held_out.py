"""Test windows, read from a file or drawn from the text."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import DataError
from chimera.data.text.reading.tokens import Rules
from chimera.data.text.vocabulary import Vocabulary
from chimera.data.text.windows import Windows


def read_windows(path: str | os.PathLike[str], vocabulary: Vocabulary, rules: Rules, width: int) -> Windows:
    """Read one window per line: words separated by spaces, the target in the middle.

    Windows with words that are not in the vocabulary are skipped, with one warning.

    Raises
    ------
    DataError : the file is missing or not text, a line has another number of words, or no window is left.
    """
    what = f"the file of test windows {str(path)!r}"
    try:
        lines = Path(path).expanduser().read_bytes().decode().splitlines()
    except OSError as error:
        raise DataError(f"{what} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{what} is not text in UTF-8: {error}") from error
    rows, unknown = [], []
    for number, line in enumerate(lines, 1):
        words = [word if word == rules.number_token else word.lower() for word in line.split()]
        if not words:
            continue
        if len(words) != width:
            raise DataError(
                f"{what} has {len(words)} words in line {number}: a window has {width}, the target in the middle"
            )
        words = [rules.number_token if rules.number_token and word.isdecimal() else word for word in words]
        strange = [word for word in words if word not in vocabulary.index]
        if strange:
            unknown.append(f"{strange[0]!r} in line {number}")
        else:
            rows.append([vocabulary.index[word] for word in words])
    if not rows:
        raise DataError(f"{what} has no window of known words" + (f"; unknown: {unknown[0]}" if unknown else ""))
    if unknown:
        warnings.warn(
            f"{what}: {len(unknown)} windows are skipped, since the vocabulary lacks a word; the first is {unknown[0]}",
            RuntimeWarning,
            stacklevel=3,
        )
    return np.array(rows, np.int32)


class Reservoir:
    """A reservoir sample: windows drawn from a stream of unknown length, each with the same probability.

    Every window gets a random key. The windows with the smallest keys are kept (Efraimidis and Spirakis 2006, equal weights).
    """

    def __init__(self, count: int, seed: int, width: int) -> None:
        self._count, self._rng = count, np.random.default_rng([seed, *b"test windows"])
        self._numbers: NDArray[np.float64] = np.empty(0)
        self._windows: Windows = np.empty((0, width), np.int32)

    def add(self, windows: Windows) -> None:
        """Add windows of the stream."""
        numbers = self._rng.random(len(windows))
        if len(self._numbers) == self._count:
            low = numbers < self._numbers[-1]
            numbers, windows = numbers[low], windows[low]
        numbers, windows = np.append(self._numbers, numbers), np.concatenate((self._windows, windows))
        first = np.argsort(numbers, kind="stable")[: self._count]
        self._numbers, self._windows = numbers[first], windows[first]

    def sample(self) -> Windows:
        """Return the sampled windows."""
        return self._windows

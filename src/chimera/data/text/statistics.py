"""Statistics of a text from one pass over it, which the model and the test part need."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import DataError
from chimera.data.text.held_out import Reservoir
from chimera.data.text.reading.source import Reader
from chimera.data.text.reading.tokens import Part
from chimera.data.text.vocabulary import Vocabulary
from chimera.data.text.windows import NO_TOKENS, Assembler, ExcludedWindows, Windowing, Windows


@dataclass(frozen=True, eq=False)
class TextStatistics:
    """Statistics of a text.

    Attributes
    ----------
    counts : number of occurrences of each word of the vocabulary, shape (V,).
    windows : number of training windows in a pass without sub-sampling.
    test : the test windows.
    content : a hash of the clean text.
    """

    counts: NDArray[np.int64]
    windows: int
    test: Windows
    content: str


def text_statistics(
    part: Part, vocabulary: Vocabulary, windowing: Windowing, test: Windows | int, seed: int
) -> TextStatistics:
    """Read the whole text once, and return its statistics.

    Parameters
    ----------
    test : the test windows, or the number of windows to draw from the text; drawn ones are excluded from training.
    seed : seed of the draw.

    Raises
    ------
    DataError : no word is known, there are too few words for a window, or too few windows for the test.
    """
    reservoir = Reservoir(test, seed, windowing.width) if isinstance(test, int) else None
    none_excluded = ExcludedWindows(np.empty((0, windowing.width), np.int32))
    assembler = Assembler(vocabulary.table(part.rules), Vocabulary(vocabulary.words), windowing, none_excluded)
    counts, windows, content = np.zeros(len(vocabulary) + 1, np.int64), 0, hashlib.sha256()
    reader, carry = Reader(part.source), NO_TOKENS
    for number in range(part.blocks):
        clean = part.clean(reader, number)
        content.update(clean)
        tokens = assembler.tokens(clean, number)
        counts += np.bincount(tokens + 1, minlength=len(counts))  # boundaries have token -1
        found, carry = assembler.joined(np.concatenate((carry, tokens)))
        windows += len(found)
        if reservoir is not None:
            reservoir.add(found)
    reader.close()
    name, known = part.source.name, int(counts[1:].sum())
    if not known:
        raise DataError(f"{name} has no word of the vocabulary, which begins with {', '.join(vocabulary.words[:5])}")
    if not windows:
        raise DataError(
            f"{name} has too few words for a training window: {known} are known, and a window has {windowing.width}"
        )
    if isinstance(test, int):
        if test >= windows:
            raise DataError(
                f"{name} has {windows} windows, too few to exclude test_windows = {test} from training: set a smaller number"
            )
        windows -= test
    return TextStatistics(
        counts[1:], windows, reservoir.sample() if reservoir else np.asarray(test), content.hexdigest()
    )

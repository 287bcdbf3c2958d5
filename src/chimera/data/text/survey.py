"""What has to be known of a text before a model is made for it, from one pass over it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import DataError
from chimera.data.text.held_out import Drawing
from chimera.data.text.source import Reader
from chimera.data.text.tokens import Part
from chimera.data.text.vocabulary import Vocabulary
from chimera.data.text.windows import NO_TOKENS, Assembler, Held, Windowing, Windows


@dataclass(frozen=True, eq=False)
class Survey:
    """A text, measured.

    Attributes
    ----------
    counts : how often each word of the vocabulary occurs.
    windows : how many training windows a pass has without sub-sampling.
    test : the windows that are tested on.
    content : a hash of the clean text.
    """

    counts: NDArray[np.int64]
    windows: int
    test: Windows
    content: str


def survey(part: Part, vocabulary: Vocabulary, windowing: Windowing, test: Windows | int, seed: int) -> Survey:
    """Go over the whole text once.

    Parameters
    ----------
    test : the windows to test on, or how many to draw from the text, which then are left out of training.
    seed : of the drawing.

    Raises
    ------
    DataError : no word is known, there are too few for a window, or too few windows to draw so many.
    """
    drawing = Drawing(test, seed, windowing.width) if isinstance(test, int) else None
    nothing_held = Held(np.empty((0, windowing.width), np.int32))
    assembler = Assembler(vocabulary.table(part.rules), Vocabulary(vocabulary.words), windowing, nothing_held)
    counts, windows, content = np.zeros(len(vocabulary) + 1, np.int64), 0, hashlib.sha256()
    reader, carry = Reader(part.source), NO_TOKENS
    for number in range(part.blocks):
        clean = part.clean(reader, number)
        content.update(clean)
        tokens = assembler.tokens(clean, number)
        counts += np.bincount(tokens + 1, minlength=len(counts))  # bounds come first
        found, carry = assembler.joined(np.concatenate((carry, tokens)))
        windows += len(found)
        if drawing is not None:
            drawing.add(found)
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
                f"{name} has {windows} windows, and test_windows = {test} of them are to be left out: ask for fewer"
            )
        windows -= test
    return Survey(counts[1:], windows, drawing.drawn() if drawing else np.asarray(test), content.hexdigest())

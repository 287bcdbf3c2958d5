"""The vectors of a text run's most frequent words, and where they lie in the plane that holds most of their variance.

A run that learnt word vectors has in its folder ``vocabulary.txt`` (a word a line, the most frequent first) and
``embeddings.csv`` (a row of numbers a word, in that order); ``stop_words.txt``, if there is one, names words not to be drawn.
Vocabularies may be huge: only their heads are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from chimera.core.safe_path import safe_path

Floats: TypeAlias = NDArray[np.float64]

MOST_WORDS = 120
_MOST_LOOKED_AT = 1000  # words, until so many are found that are no stop words
_LONGEST_LINE = 1 << 20  # bytes
_LARGEST_STOP_LIST = 1 << 20  # bytes


@dataclass(frozen=True, eq=False)
class Words:
    """Frequent words and their vectors.

    Attributes
    ----------
    words : the most frequent first, at least three.
    ranks : the place of each in the vocabulary, from 1.
    vectors : shape (words, dimensions), finite.
    without_stop_words : whether a list of stop words was left out.
    """

    words: tuple[str, ...]
    ranks: tuple[int, ...]
    vectors: Floats
    without_stop_words: bool


def read_words(folder: Path, notes: list[str]) -> Words | None:
    """Read what there is to draw; None where a run has no words, or, with a note, where its files cannot be used."""
    vocabulary, embeddings = folder / "vocabulary.txt", folder / "embeddings.csv"
    if not (vocabulary.is_file() and embeddings.is_file()):
        return None
    try:
        for name in (vocabulary.name, embeddings.name, "stop_words.txt"):
            safe_path(folder, name)
        stop_words = _stop_words(folder / "stop_words.txt")
        chosen = _chosen(vocabulary, stop_words)
        if len(chosen) < 3:
            raise ValueError(f"{vocabulary.name} has fewer than three words to draw")
        vectors = _vectors(embeddings, list(chosen.values()))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        notes.append(f"There is no picture of the words: {reason}.")
        return None
    ranks = tuple(place + 1 for place in chosen.values())
    return Words(tuple(chosen), ranks, vectors, bool(stop_words))


def plane(vectors: Floats) -> tuple[Floats, tuple[float, float]]:
    """Return where vectors lie in the plane of their first two principal components, and each one's share of the variance.

    Vectors count by their direction alone, as they do where neighbours are sought; signs are such that the largest
    coordinate of either axis is positive.

    Returns
    -------
    points : shape (words, 2).
    shares : each 0 to 1; both 0 where all vectors are alike.
    """
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    scaled = vectors / np.where(largest > 0, largest, 1.0)
    lengths = np.linalg.norm(scaled, axis=1, keepdims=True)
    unit = scaled / np.where(lengths > 0, lengths, 1.0)
    left, singular, _ = np.linalg.svd(unit - unit.mean(axis=0), full_matrices=False)
    points = np.zeros((len(vectors), 2))
    variances = np.zeros(2)
    found = min(2, len(singular))
    points[:, :found] = left[:, :found] * singular[:found]
    variances[:found] = singular[:found] ** 2
    total = float((singular**2).sum())
    if total < 1e-12:
        return np.zeros((len(vectors), 2)), (0.0, 0.0)
    signs = np.sign(points[np.abs(points).argmax(axis=0), range(2)])
    return points * np.where(signs == 0, 1.0, signs), (float(variances[0] / total), float(variances[1] / total))


def _stop_words(path: Path) -> frozenset[str]:
    if not path.is_file():
        return frozenset()
    with path.open("rb") as file:
        return frozenset(file.read(_LARGEST_STOP_LIST).decode("utf-8", "replace").split())


def _chosen(path: Path, stop_words: frozenset[str]) -> dict[str, int]:
    """Return the words to draw and their places in the vocabulary, from 0."""
    chosen: dict[str, int] = {}
    for place, word in enumerate(_lines(path)):
        if place == _MOST_LOOKED_AT or len(chosen) == MOST_WORDS:
            break
        if not word:
            raise ValueError(f"line {place + 1} of {path.name} is empty")
        if word not in stop_words:
            chosen.setdefault(word, place)
    return chosen


def _vectors(path: Path, places: list[int]) -> Floats:
    wanted, rows = set(places), []
    for place, line in enumerate(_lines(path)):
        if place in wanted:
            try:
                rows.append(np.array(line.split(), dtype=np.float64))
            except ValueError:
                raise ValueError(f"line {place + 1} of {path.name} is not a row of numbers") from None
            if not rows[-1].size or len(rows[-1]) != len(rows[0]) or not np.isfinite(rows[-1]).all():
                raise ValueError(
                    f"line {place + 1} of {path.name} has not as many finite numbers as there are dimensions"
                )
        if len(rows) == len(places):
            return np.stack(rows)
    raise ValueError(f"{path.name} has fewer rows than vocabulary.txt has words")


def _lines(path: Path) -> Iterator[str]:
    with path.open("rb") as file:
        while line := file.readline(_LONGEST_LINE):
            if len(line) == _LONGEST_LINE:
                raise ValueError(f"a line of {path.name} is longer than {_LONGEST_LINE:,} bytes")
            yield line.decode("utf-8", "replace").strip()

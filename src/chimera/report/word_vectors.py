"""The vectors of a run's most frequent words, and their projection on the first two principal components.

A run that trained word vectors has two files: ``vocabulary.txt`` (a word per line, the most frequent first) and
``embeddings.csv`` (a row of numbers per word, in the same order). An optional ``stop_words.txt`` lists words that are
not drawn. Vocabularies may be huge: only the first lines are read.
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

MAX_WORDS = 120
_MAX_WORDS_READ = 1000  # to find `MAX_WORDS` words that are not stop words
_MAX_LINE_BYTES = 1 << 20
_MAX_STOP_LIST_BYTES = 1 << 20


@dataclass(frozen=True, eq=False)
class Words:
    """Frequent words and their vectors.

    Attributes
    ----------
    words : the words, the most frequent first; at least three.
    ranks : frequency rank of each word in the vocabulary, from 1.
    vectors : shape (words, dimensions), finite.
    without_stop_words : whether stop words were left out.
    """

    words: tuple[str, ...]
    ranks: tuple[int, ...]
    vectors: Floats
    without_stop_words: bool


def read_words(folder: Path, notes: list[str]) -> Words | None:
    """Return the words of a run to draw; None if it has none or, after adding a note to ``notes``, if its files are invalid."""
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
        notes.append(f"There is no plot of the words: {reason}.")
        return None
    ranks = tuple(place + 1 for place in chosen.values())
    return Words(tuple(chosen), ranks, vectors, bool(stop_words))


def project_to_plane(vectors: Floats) -> tuple[Floats, tuple[float, float]]:
    """Return the projections of vectors on their first two principal components, and each component's share of the variance.

    Vectors are normalised first, as in searches of nearest neighbours. Signs are such that the coordinate of each axis with
    the largest absolute value is positive.

    Returns
    -------
    points : shape (words, 2).
    shares : 0 to 1 each; both 0 if all vectors are equal.
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
        return frozenset(file.read(_MAX_STOP_LIST_BYTES).decode("utf-8", "replace").split())


def _chosen(path: Path, stop_words: frozenset[str]) -> dict[str, int]:
    """Return the words to draw and their indices in the vocabulary, from 0."""
    chosen: dict[str, int] = {}
    for place, word in enumerate(_lines(path)):
        if place == _MAX_WORDS_READ or len(chosen) == MAX_WORDS:
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
                raise ValueError(f"line {place + 1} of {path.name} does not have one finite number for each dimension")
        if len(rows) == len(places):
            return np.stack(rows)
    raise ValueError(f"{path.name} has fewer rows than vocabulary.txt has words")


def _lines(path: Path) -> Iterator[str]:
    with path.open("rb") as file:
        while line := file.readline(_MAX_LINE_BYTES):
            if len(line) == _MAX_LINE_BYTES:
                raise ValueError(f"a line of {path.name} is longer than {_MAX_LINE_BYTES:,} bytes")
            yield line.decode("utf-8", "replace").strip()

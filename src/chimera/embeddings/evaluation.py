"""Evaluation of word vectors by human similarity judgements and by analogies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chimera.core.errors import DataError
from chimera.embeddings.word_vectors import WordVectors


@dataclass(frozen=True)
class Similarities:
    """The rank correlation of cosines with human similarity judgements.

    Attributes
    ----------
    name : name of the file, without its ending.
    spearman : rank correlation, -1 to 1, over the pairs whose words are known.
    pairs, unknown : number of pairs, and of pairs with an unknown word.
    """

    name: str
    spearman: float
    pairs: int
    unknown: int


@dataclass(frozen=True)
class Analogies:
    """The accuracy on analogy questions ``a : b :: c : ?``.

    Attributes
    ----------
    name : name of the file, without its ending.
    accuracy : 0 to 1, over the questions whose words are known.
    questions, unknown : number of questions, and of questions with an unknown word.
    sections : for each section its numbers of correct answers and of questions with known words.
    """

    name: str
    accuracy: float
    questions: int
    unknown: int
    sections: dict[str, tuple[int, int]]


def evaluate(vectors: WordVectors, path: str | Path) -> Similarities | Analogies:
    """Evaluate word vectors by a file of pairs or of analogies; its content decides which.

    A line of pairs has two words and a number, separated by tabs or blanks (MEN: Bruni, Tran and Baroni, 2014, Multimodal
    Distributional Semantics; WordSim-353: Finkelstein et al., 2002, Placing Search in Context). A first line without a number
    is a header. A line of analogies has four words; sections begin with ``: name`` (Mikolov et al., 2013). Lines that begin
    with ``#`` are skipped.

    Raises
    ------
    DataError : a line has another format (the message has its number), or too few words are known.
    """
    path = Path(path)
    lines = list(_lines(path))
    if not lines:
        raise DataError(f"{path} is empty: expected pairs of words with a number, or questions of four words")
    first = lines[0][1]
    if first.startswith(":") or (len(first.split()) == 4 and "\t" not in first):
        return _analogies(vectors, path, lines)
    return _similarities(vectors, path, lines)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each line that is not blank or a comment."""
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not text in UTF-8") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip() and not line.startswith("#"):
            yield number, line.strip("\r\n")


def _similarities(vectors: WordVectors, path: Path, lines: list[tuple[int, str]]) -> Similarities:
    from scipy.stats import spearmanr

    judged, places = list[float](), list[tuple[int, int]]()
    pairs = 0
    for position, (number, line) in enumerate(lines):
        fields = [field.strip() for field in line.split("\t")] if "\t" in line else line.split()
        value = _number(fields[2]) if len(fields) == 3 else None
        if value is None:
            if position == 0 and len(fields) == 3:
                continue  # the header
            raise DataError(f"{path}, line {number}: {line!r} is not two words and a number")
        pairs += 1
        a, b = vectors.place(fields[0]), vectors.place(fields[1])
        if a is not None and b is not None:
            judged.append(value)
            places.append((a, b))
    if len(set(judged)) < 2:
        raise DataError(f"{path}: too few of {pairs} pairs have known words for a correlation")
    left, right = np.array(places).T
    cosines = np.einsum("ij,ij->i", vectors.unit[left], vectors.unit[right])
    if np.ptp(cosines) == 0:
        raise DataError(f"{path}: all pairs have the same cosine: the vectors carry no information")
    return Similarities(path.stem, float(spearmanr(judged, cosines).statistic), pairs, pairs - len(judged))


def _number(field: str) -> float | None:
    try:
        value = float(field)
    except ValueError:
        return None
    return value if np.isfinite(value) else None


def _analogies(vectors: WordVectors, path: Path, lines: list[tuple[int, str]]) -> Analogies:
    section, sections = "", list[str]()
    asked = list[tuple[int, ...]]()
    questions = 0
    for number, line in lines:
        if line.startswith(":"):
            section = line[1:].strip()
            continue
        fields = line.split()
        if len(fields) != 4:
            raise DataError(f"{path}, line {number}: {line!r} is neither four words nor a section ': name'")
        questions += 1
        places = [place for place in map(vectors.place, fields) if place is not None]
        if len(places) == 4:
            asked.append(tuple(places))
            sections.append(section)
    if not asked:
        raise DataError(f"{path}: none of {questions} questions has only known words")
    rows = np.array(asked, np.int64)
    right = vectors.answers(rows[:, :3]) == rows[:, 3]
    by_section = dict.fromkeys(sections, (0, 0))
    for name, good in zip(sections, right.tolist(), strict=True):
        hits, known = by_section[name]
        by_section[name] = hits + good, known + 1
    return Analogies(path.stem, float(right.mean()), questions, questions - len(asked), by_section)

"""The words that a model knows, in a fixed order that defines their indices."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError, DataError
from chimera.core.private import write
from chimera.data.text.reading.source import Reader, Source
from chimera.data.text.reading.tokens import NUMBER, Part, Rules
from chimera.data.text.words import WordTable

_UPPER = str.maketrans("0123456789", "ABCDEFGHIJ")


class Vocabulary:
    """Words, and their numbers of occurrences in a text, if they were counted.

    Parameters
    ----------
    words : distinct words.
    counts : one for each word, or None.
    origin : name of the vocabulary in messages.

    Raises
    ------
    DataError : there are no words, a word occurs twice, or a word has a space in it.
    """

    def __init__(
        self, words: Iterable[str], counts: NDArray[np.int64] | None = None, *, origin: str = "the vocabulary"
    ) -> None:
        self.words = tuple(words)
        self.counts = counts
        if not self.words:
            raise DataError(f"{origin} has no words")
        if len(set(self.words)) < len(self.words):
            double = next(word for place, word in enumerate(self.words) if self.index[word] != place)
            raise DataError(f"{origin} has the word {double!r} twice: remove one")
        if len("\n".join(self.words).split()) != len(self.words):
            raise DataError(f"{origin} has words with spaces in them, or empty ones")
        if counts is not None and len(counts) != len(self.words):
            raise DataError(f"{origin} has {len(self.words)} words but {len(counts)} counts")

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Vocabulary:
        """Read words, separated by white space, from a file.

        Raises
        ------
        DataError : the file is missing, empty or not text, or has a word twice.
        """
        try:
            text = Path(path).expanduser().read_bytes().decode()
        except OSError as error:
            raise DataError(f"the vocabulary {str(path)!r} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise DataError(f"the vocabulary {str(path)!r} is not text in UTF-8: {error}") from error
        return cls(text.split(), origin=f"the vocabulary {str(path)!r}")

    @classmethod
    def build(
        cls,
        source: Source,
        rules: Rules,
        *,
        size: int | None = None,
        min_count: int = 1,
        stop_words: Collection[str] = (),
    ) -> Vocabulary:
        """Count the words of a text, and keep the most frequent ones; ties are in alphabetical order.

        Parameters
        ----------
        size : maximum number of words; default all.
        min_count : minimum number of occurrences of a word.
        stop_words : words to exclude.

        Raises
        ------
        DataError : no word is left.
        """
        if size is not None and size < 1:
            raise ConfigurationError(f"vocabulary_size is {size}: it must be 1 or more")
        if min_count < 1:
            raise ConfigurationError(f"min_count is {min_count}: it must be 1 or more")
        table, reader, part = WordTable(longest=rules.longest), Reader(source), Part.of(source, rules, 0, 1)
        for number in range(part.blocks):
            table.count(part.clean(reader, number))
        reader.close()
        words, counts = table.counted()
        pairs = zip(map(rules.vocabulary_form, words), counts.tolist(), strict=True)
        kept = [(-count, word) for word, count in pairs if count >= min_count and word not in stop_words]
        kept = sorted(kept)[:size]
        if not kept:
            reason = f": none of its {len(words)} words is left" if words else ""
            raise DataError(f"{source.name} has no words{reason}")
        return cls([word for _, word in kept], np.array([-count for count, _ in kept], np.int64))

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def index(self) -> dict[str, int]:
        """The index of each word."""
        return {word: place for place, word in enumerate(self.words)}

    def with_counts(self, counts: NDArray[np.int64]) -> Vocabulary:
        """Return the same words with these counts."""
        return Vocabulary(self.words, counts)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the words to a file, one per line, in the format of `read`."""
        write(Path(path), ("\n".join(self.words) + "\n").encode())

    def unreachable(self, rules: Rules) -> list[str]:
        """Return the words that cannot occur in a text under these rules."""
        longest = rules.longest or sys.maxsize
        return [word for word in self.words if not _can_occur(rules.clean(word)) or len(rules.clean(word)) > longest]

    def table(self, rules: Rules) -> WordTable:
        """Return a table that looks up words of clean text and returns their indices."""
        return WordTable(_keys(self.words, rules), rules.longest)

    def __getstate__(self) -> tuple[Any, ...]:
        return "\n".join(self.words), self.counts  # pickling a million separate strings takes seconds

    def __setstate__(self, state: tuple[str, NDArray[np.int64] | None]) -> None:
        self.words, self.counts = tuple(state[0].split("\n")), state[1]  # checked by the constructor


def _keys(words: Sequence[str], rules: Rules) -> list[str]:
    """Return the clean-text form of the words. A word that cannot occur gets a unique form that cannot occur."""
    keys = map(rules.clean, words)
    return [key if _can_occur(key) else f"X{place}".translate(_UPPER) for place, key in enumerate(keys)]


def _can_occur(key: str) -> bool:
    return key == NUMBER or (key.isascii() and key.isalpha() and key.islower())

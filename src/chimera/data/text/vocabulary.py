"""The words that a model knows, in a fixed order: a word's place is its index everywhere."""

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
from chimera.data.text.source import Reader, Source
from chimera.data.text.tokens import NUMBER, Part, Rules
from chimera.data.text.words import WordTable

_UPPER = str.maketrans("0123456789", "ABCDEFGHIJ")


class Vocabulary:
    """Words, and how often each occurs in a text, if one was counted.

    Parameters
    ----------
    words : all different.
    counts : one for each word, or None.
    origin : what messages call it.

    Raises
    ------
    DataError : no words, a word twice, or a word with a space in it.
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
            raise DataError(f"{origin} has the word {double!r} twice: each may stand there once")
        if len("\n".join(self.words).split()) != len(self.words):
            raise DataError(f"{origin} has words with spaces in them, or empty ones")
        if counts is not None and len(counts) != len(self.words):
            raise DataError(f"{origin} has {len(self.words)} words but {len(counts)} counts")

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Vocabulary:
        """Read words from a file, with white space between them.

        Raises
        ------
        DataError : the file is missing, empty or no text, or has a word twice.
        """
        try:
            text = Path(path).expanduser().read_bytes().decode()
        except OSError as error:
            raise DataError(f"the vocabulary {str(path)!r} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise DataError(f"the vocabulary {str(path)!r} is no text in UTF-8: {error}") from error
        return cls(text.split(), origin=f"the vocabulary {str(path)!r}")

    @classmethod
    def built(
        cls,
        source: Source,
        rules: Rules,
        *,
        size: int | None = None,
        min_count: int = 1,
        stop_words: Collection[str] = (),
    ) -> Vocabulary:
        """Count the words of a text, and keep the most frequent ones; of equally frequent ones the alphabetically first.

        Parameters
        ----------
        size : how many words to keep at most.
        min_count : how often a word must occur.
        stop_words : words to leave out.

        Raises
        ------
        DataError : no word is left.
        """
        if size is not None and size < 1:
            raise ConfigurationError(f"vocabulary_size is {size}: a vocabulary has 1 word or more")
        if min_count < 1:
            raise ConfigurationError(f"min_count is {min_count}: it must be 1 or more")
        table, reader, part = WordTable(longest=rules.longest), Reader(source), Part.of(source, rules, 0, 1)
        for number in range(part.blocks):
            table.count(part.clean(reader, number))
        reader.close()
        words, counts = table.counted()
        pairs = zip(map(rules.shown, words), counts.tolist(), strict=True)
        kept = [(-count, word) for word, count in pairs if count >= min_count and word not in stop_words]
        kept = sorted(kept)[:size]
        if not kept:
            why = f": none of its {len(words)} words is left" if words else ""
            raise DataError(f"{source.name} has no words{why}")
        return cls([word for _, word in kept], np.array([-count for count, _ in kept], np.int64))

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def index(self) -> dict[str, int]:
        """The index of each word."""
        return {word: place for place, word in enumerate(self.words)}

    def counted(self, counts: NDArray[np.int64]) -> Vocabulary:
        """Return the same words with these counts."""
        return Vocabulary(self.words, counts)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the words to a file, one a line, as `read` takes them."""
        write(Path(path), ("\n".join(self.words) + "\n").encode())

    def unreachable(self, rules: Rules) -> list[str]:
        """Return the words that no text can hold under these rules."""
        longest = rules.longest or sys.maxsize
        return [word for word in self.words if not _can_occur(rules.clean(word)) or len(rules.clean(word)) > longest]

    def table(self, rules: Rules) -> WordTable:
        """Return a table that finds the words in clean text under their indices."""
        return WordTable(_keys(self.words, rules), rules.longest)

    def __getstate__(self) -> tuple[Any, ...]:
        return "\n".join(self.words), self.counts  # a million strings one by one take seconds

    def __setstate__(self, state: tuple[str, NDArray[np.int64] | None]) -> None:
        self.words, self.counts = tuple(state[0].split("\n")), state[1]  # checked when it was made


def _keys(words: Sequence[str], rules: Rules) -> list[str]:
    """Return the words as clean text has them; one that it never has becomes something else that it never has."""
    keys = map(rules.clean, words)
    return [key if _can_occur(key) else f"X{place}".translate(_UPPER) for place, key in enumerate(keys)]


def _can_occur(key: str) -> bool:
    return key == NUMBER or (key.isascii() and key.isalpha() and key.islower())

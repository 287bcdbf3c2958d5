"""Tokenization: the definition of a word, and blocks of text that end at the end of a word."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

from chimera.core.errors import ConfigurationError, DataError
from chimera.data.text.reading.source import Reader, Source

Bounds: TypeAlias = Literal["lines", "sentences"] | None

BLOCK_BYTES = 1 << 18
"""Size of a block of text. Sub-sampling draws per block, so another size gives other samples."""

NUMBER = "0"
"""The form of a number in clean text, independent of its token."""

_BOUND_BYTES = {None: b"", "lines": b"\n", "sentences": b".!?"}
_MAX_TOKEN_BYTES = 1 << 20
_AHEAD_BYTES = 256
_BREAK = re.compile(rb"[ \n]")


@dataclass(frozen=True)
class Rules:
    """The definition of a word: a sequence of the letters A to Z, converted to lower case.

    All other bytes are treated as spaces, so any encoding is accepted.

    Attributes
    ----------
    number_token : the word that replaces every sequence of digits; by default digits are treated as spaces.
    longest : words with more letters are dropped; default no limit.
    bounds : boundaries that no window crosses: the ends of ``"lines"``, or of ``"sentences"`` (a full stop, ! or ?).
    """

    number_token: str | None = None
    longest: int | None = None
    bounds: Bounds = None

    def __post_init__(self) -> None:
        if self.bounds not in _BOUND_BYTES:
            raise ConfigurationError(f"the bounds {self.bounds!r} are unknown; known: lines, sentences")
        token = self.number_token
        if token is not None and (not token or re.search(r"\s", token) or re.fullmatch("[a-zA-Z0-9]+", token)):
            raise ConfigurationError(
                f"the number token {token!r} could be a normal word, or is invalid: use one like '<num>', without spaces"
            )
        if self.longest is not None and self.longest < 1:
            raise ConfigurationError(f"longest is {self.longest}: a word has 1 letter or more")

    @cached_property
    def table(self) -> bytes:
        """The replacement of each byte: a lower-case letter, the digit 0, a line end for a boundary, or a space."""
        table = bytearray(b" " * 256)
        for letter in range(26):
            table[65 + letter] = table[97 + letter] = 97 + letter
        if self.number_token is not None:
            table[48:58] = NUMBER.encode() * 10
        for byte in _BOUND_BYTES[self.bounds]:
            table[byte] = 10
        return bytes(table)

    def vocabulary_form(self, word: str) -> str:
        """Return the vocabulary form of a word of clean text."""
        return self.number_token if word == NUMBER and self.number_token is not None else word

    def clean(self, word: str) -> str:
        """Return the clean-text form of a word of a vocabulary."""
        return NUMBER if word == self.number_token else word

    def words(self, text: bytes) -> list[str]:
        """Return the words of a short text, in order, regardless of ``longest`` and ``bounds``."""
        found = re.findall(rb"[a-z]+|0+", text.translate(self.table))
        return [self.vocabulary_form(NUMBER if word[:1] == b"0" else word.decode()) for word in found]


@dataclass(frozen=True)
class Part:
    """A contiguous part of a source, in numbered blocks. It is read in endless passes, so block numbers have no limit.

    A word belongs to the block, and the part, that contains its first byte.

    Attributes
    ----------
    source, rules : the files, and the definition of a word.
    begin, end : bounds of the part, in bytes.
    block_bytes : size of a block, apart from words that cross its ends.
    """

    source: Source
    rules: Rules
    begin: int
    end: int
    block_bytes: int = BLOCK_BYTES

    @classmethod
    def of(cls, source: Source, rules: Rules, index: int, parts: int, block_bytes: int = BLOCK_BYTES) -> Part:
        """Return one of ``parts`` parts of equal length."""
        if not 0 <= index < parts:
            raise ConfigurationError(f"part {index} is not one of {parts} parts")
        size = source.size
        return cls(source, rules, size * index // parts, size * (index + 1) // parts, block_bytes)

    @property
    def blocks(self) -> int:
        """The number of blocks in a pass."""
        return max(-(-(self.end - self.begin) // self.block_bytes), 1)

    def clean(self, reader: Reader, number: int) -> bytes:
        """Return a block as clean text: letters a to z, 0, spaces, and line ends for boundaries.

        Raises
        ------
        DataError : a megabyte has no space, so the file is not text; or the files changed or cannot be read.
        """
        begin = self.begin + number % self.blocks * self.block_bytes
        end = min(begin + self.block_bytes, self.end)
        first = max(begin - 1, 0)  # the byte before shows whether a word has begun there
        ahead = _AHEAD_BYTES
        while True:
            clean = reader.read(first, end + ahead).translate(self.rules.table)
            start = begin - first
            if start and clean[0] > 32:
                found = _BREAK.search(clean, start, end - first)
                if found is None:
                    return b""
                start = found.start()
            stop = end - first
            if stop <= start or clean[stop - 1] <= 32 or stop == len(clean):
                return clean[start:stop]
            found = _BREAK.search(clean, stop)
            if found is not None:
                return clean[start : found.start()]
            if end + ahead >= self.source.size:
                return clean[start:]
            if ahead > _MAX_TOKEN_BYTES:
                raise DataError(f"{self.source.name} is not text: it has {_MAX_TOKEN_BYTES} letters without a space")
            ahead *= 16

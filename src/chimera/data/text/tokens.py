"""From bytes to words: what counts as a word, and blocks of text that end where words end."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

from chimera.core.errors import ConfigurationError, DataError
from chimera.data.text.source import Reader, Source

Bounds: TypeAlias = Literal["lines", "sentences"] | None

BLOCK_BYTES = 1 << 18
"""How much text is dealt with at once; the draws of sub-sampling go by blocks, so another size gives other samples."""

NUMBER = "0"
"""How a number is written in clean text, whatever its token is called."""

_BOUND_BYTES = {None: b"", "lines": b"\n", "sentences": b".!?"}
_LONGEST_BYTES = 1 << 20
_AHEAD_BYTES = 256
_BREAK = re.compile(rb"[ \n]")


@dataclass(frozen=True)
class Rules:
    """What a word is: a run of the letters A to Z, in lower case. All other bytes are spaces, so any encoding will do.

    Attributes
    ----------
    number_token : the word that stands for every run of digits; without one, digits are spaces.
    longest : words with more letters are left out.
    bounds : what no window reaches across: the ends of ``"lines"``, or of ``"sentences"`` (a full stop, ! or ?).
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
                f"the number token {token!r} could be a word, or is none: give one like '<num>', without spaces"
            )
        if self.longest is not None and self.longest < 1:
            raise ConfigurationError(f"longest is {self.longest}: a word has 1 letter or more")

    @cached_property
    def table(self) -> bytes:
        """What each byte becomes: a lower-case letter, the digit 0, a line end for a bound, or a space."""
        table = bytearray(b" " * 256)
        for letter in range(26):
            table[65 + letter] = table[97 + letter] = 97 + letter
        if self.number_token is not None:
            table[48:58] = NUMBER.encode() * 10
        for byte in _BOUND_BYTES[self.bounds]:
            table[byte] = 10
        return bytes(table)

    def shown(self, word: str) -> str:
        """Return a word of clean text as vocabularies have it."""
        return self.number_token if word == NUMBER and self.number_token is not None else word

    def clean(self, word: str) -> str:
        """Return a word of a vocabulary as clean text has it."""
        return NUMBER if word == self.number_token else word

    def words(self, text: bytes) -> list[str]:
        """Return the words of a short text, in order; ``longest`` and bounds do not count here."""
        found = re.findall(rb"[a-z]+|0+", text.translate(self.table))
        return [self.shown(NUMBER if word[:1] == b"0" else word.decode()) for word in found]


@dataclass(frozen=True)
class Part:
    """A stretch of a source, in numbered blocks; reading goes over it again and again, so numbers go on for ever.

    A word belongs to the block, and the part, in which its first byte lies.

    Attributes
    ----------
    source, rules : what is read, and how.
    begin, end : where the part lies, in bytes.
    block_bytes : how long a block is, but for words that reach across its ends.
    """

    source: Source
    rules: Rules
    begin: int
    end: int
    block_bytes: int = BLOCK_BYTES

    @classmethod
    def of(cls, source: Source, rules: Rules, index: int, parts: int, block_bytes: int = BLOCK_BYTES) -> Part:
        """Return one of ``parts`` stretches of equal length."""
        if not 0 <= index < parts:
            raise ConfigurationError(f"part {index} is none of {parts} parts")
        size = source.size
        return cls(source, rules, size * index // parts, size * (index + 1) // parts, block_bytes)

    @property
    def blocks(self) -> int:
        """How many blocks a pass has."""
        return max(-(-(self.end - self.begin) // self.block_bytes), 1)

    def clean(self, reader: Reader, number: int) -> bytes:
        """Return a block as clean text: letters a to z, 0, spaces and line ends for bounds.

        Raises
        ------
        DataError : a megabyte without a space, so no text; files that cannot be read, or changed.
        """
        begin = self.begin + number % self.blocks * self.block_bytes
        end = min(begin + self.block_bytes, self.end)
        first = max(begin - 1, 0)  # the byte before tells whether a word has begun there
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
            if ahead > _LONGEST_BYTES:
                raise DataError(f"{self.source.name} is no text: it has {_LONGEST_BYTES} letters without a space")
            ahead *= 16

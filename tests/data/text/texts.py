"""Texts for tests, and simple reference implementations of the fast code."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from chimera.data.text.reading.source import Reader
from chimera.data.text.reading.tokens import Part, Rules


def written(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def random_text(words: int, vocabulary: int = 300, seed: int = 0) -> str:
    """Return lines of twelve random words with a Zipf distribution."""
    rng = np.random.default_rng(seed)
    known = ["".join(chr(97 + int(digit)) for digit in np.base_repr(37 + place * 7, 9)) for place in range(vocabulary)]
    drawn = rng.zipf(1.3, words) % vocabulary
    return "\n".join(" ".join(known[place] for place in drawn[at : at + 12]) for at in range(0, words, 12))


def naive_words(data: bytes, rules: Rules) -> list[str]:
    """Return the words of a text by definition; "." means a boundary."""
    bounds = {None: "", "lines": "\n", "sentences": "[.!?]"}[rules.bounds]
    pattern = "|".join(filter(None, ("[a-z]+", "[0-9]+" if rules.number_token else "", bounds)))
    found = re.findall(pattern, data.decode("latin-1").translate(_LOWER))
    words = [rules.number_token if word[0].isdecimal() else word if word[0].isalpha() else "." for word in found]
    return [str(w) for w in words if w in (".", rules.number_token) or len(str(w)) <= (rules.longest or len(str(w)))]


_LOWER = {65 + letter: 97 + letter for letter in range(26)}


def words_of(part: Part) -> list[str]:
    """Return the words of a part, read block by block; "." means a boundary."""
    found, reader, rules = [], Reader(part.source), part.rules
    for number in range(part.blocks):
        for word in re.findall(rb"[a-z]+|0+|\n", part.clean(reader, number)):
            shown = "." if word == b"\n" else rules.vocabulary_form("0" if word[:1] == b"0" else word.decode())
            if shown in (".", rules.number_token) or len(shown) <= (rules.longest or len(shown)):
                found.append(shown)
    return found

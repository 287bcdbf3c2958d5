"""Words and their vectors."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from chimera.core.errors import ConfigurationError, DataError

_QUERIES = 256  # per block, so that the table of their products with all words stays small


class WordVectors:
    """One vector per word, with similarities, neighbours and analogies. Similarity is the cosine.

    Parameters
    ----------
    words : distinct words.
    vectors : shape (V, d), finite; copied to read-only float32.

    Raises
    ------
    DataError : there is not one vector per word, a word occurs twice, or a number is not finite.
    """

    def __init__(self, words: Sequence[str], vectors: ArrayLike) -> None:
        table = np.array(vectors, np.float32)
        if table.ndim != 2 or len(table) != len(words) or not table.size:
            raise DataError(f"{len(words)} words need as many vectors, not an array of shape {table.shape}")
        self.words = tuple(words)
        self._index = {word: place for place, word in enumerate(self.words)}
        if len(self._index) != len(self.words):
            twice = next(word for place, word in enumerate(self.words) if self._index[word] != place)
            raise DataError(f"the word {twice!r} occurs twice")
        if not np.isfinite(table).all():
            unknown = self.words[int(np.flatnonzero(~np.isfinite(table).all(1))[0])]
            raise DataError(f"the vector of {unknown!r} has a value that is not a finite number")
        table.flags.writeable = False
        self.vectors = table
        self._unit: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self._index

    def __getitem__(self, word: str) -> NDArray[np.float32]:
        row: NDArray[np.float32] = self.vectors[self.index(word)]
        return row

    @property
    def dim(self) -> int:
        """The dimension of a vector."""
        return int(self.vectors.shape[1])

    @property
    def unit(self) -> NDArray[np.float32]:
        """The vectors scaled to length 1, shape (V, d); vectors of length 0 stay 0."""
        if self._unit is None:
            wide = self.vectors.astype(np.float64)  # squares of large or small float32 would overflow or underflow
            lengths = np.sqrt(np.einsum("ij,ij->i", wide, wide))[:, None]
            self._unit = np.divide(wide, lengths, out=np.zeros_like(wide), where=lengths > 0).astype(np.float32)
        return self._unit

    def place(self, word: str) -> int | None:
        """Return the row of a word, or of its lower-case form; None if there is neither."""
        found = self._index.get(word)
        return self._index.get(word.lower()) if found is None else found

    def index(self, word: str) -> int:
        """Return the row of a word.

        Raises
        ------
        ConfigurationError : the word is not in the vocabulary; the message names similar words.
        """
        found = self.place(word)
        if found is None:
            close = difflib.get_close_matches(word.lower(), self.words, 3)
            hint = f"; similar: {', '.join(close)}" if close else ""
            raise ConfigurationError(f"the word {word!r} is not in the vocabulary of {len(self)} words{hint}")
        return found

    def similarity(self, a: str, b: str) -> float:
        """Return the cosine of two words, -1 to 1."""
        return float(self.unit[self.index(a)] @ self.unit[self.index(b)])

    def neighbours(self, word: str, count: int = 10) -> list[tuple[str, float]]:
        """Return the words most similar to a word, the best first, with their cosines, without the word itself."""
        place = self.index(word)
        return self._best(self.unit[place], [place], count)

    def analogy(self, a: str, b: str, c: str, count: int = 1) -> list[tuple[str, float]]:
        """Return the best answers to ``a : b :: c : ?``, the best first, such as ``analogy("man", "king", "woman")``.

        The answers are the words most similar to b - a + c, of unit vectors, without these three words (3CosAdd: Mikolov, Yih
        and Zweig, 2013, Linguistic Regularities in Continuous Space Word Representations).
        """
        places = [self.index(word) for word in (a, b, c)]
        minus, plus, base = self.unit[places]
        target = plus - minus + base
        length = float(np.linalg.norm(target))
        return self._best(target / length if length > 0 else target, places, count)

    def _best(self, target: NDArray[np.float32], excluded: Sequence[int], count: int) -> list[tuple[str, float]]:
        if count < 1:
            raise ConfigurationError(f"the number of words to find is {count}: it must be at least 1")
        cosines = self.unit @ target
        cosines[list(excluded)] = -np.inf
        count = min(count, len(self) - len(set(excluded)))
        found = np.argpartition(-cosines, max(count - 1, 0))[:count]
        found = found[np.argsort(-cosines[found], kind="stable")]
        return [(self.words[place], float(cosines[place])) for place in found]

    def answers(self, questions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the row of the best answer to each analogy question, given as rows (a, b, c), shape (n, 3)."""
        found = np.empty(len(questions), np.int64)
        for begin in range(0, len(questions), _QUERIES):
            batch = questions[begin : begin + _QUERIES]
            minus, plus, base = (self.unit[batch[:, column]] for column in range(3))
            cosines = (plus - minus + base) @ self.unit.T
            np.put_along_axis(cosines, batch, -np.inf, axis=1)
            found[begin : begin + _QUERIES] = cosines.argmax(1)
        return found

    def save(self, path: str | Path) -> None:
        """Write a file; its ending sets the format, see `chimera.embeddings.files`."""
        from chimera.embeddings.files import save

        save(self, Path(path))

    @classmethod
    def load(cls, path: str | Path, words: Sequence[str] | None = None) -> Self:
        """Read a file; its ending sets the format, see `chimera.embeddings.files`.

        Parameters
        ----------
        words : the words of a ``.csv`` file, in its order; the other formats contain them.

        Raises
        ------
        DataError : the file does not have the format of its ending; the message names the line in a text format.
        """
        from chimera.embeddings.files import load

        found: tuple[Sequence[str], Any] = load(Path(path), words)
        return cls(*found)

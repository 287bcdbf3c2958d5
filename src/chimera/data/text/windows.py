"""Sub-sampling of words, and windows of consecutive words with the target in the middle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError
from chimera.data.text.vocabulary import Vocabulary
from chimera.data.text.words import WordTable

Tokens = NDArray[np.int32]
Windows = NDArray[np.int32]
Stride: TypeAlias = Literal["sliding", "disjoint"]

NO_TOKENS: Tokens = np.empty(0, np.int32)


@dataclass(frozen=True)
class Windowing:
    """The definition of windows over a sequence of words. Words outside the vocabulary are removed first.

    Attributes
    ----------
    width : words per window, the target in the middle: odd, at least 3.
    stride : ``"sliding"``: one window for every word with enough neighbours on both sides; ``"disjoint"``: each word is in
        one window.
    sample : threshold of sub-sampling: words with a larger relative frequency are dropped at random; 0 drops none.
    """

    width: int = 5
    stride: Stride = "sliding"
    sample: float = 0.0

    def __post_init__(self) -> None:
        if self.width < 3 or self.width % 2 == 0:
            raise ConfigurationError(
                f"the width is {self.width}: a window has 3, 5, 7 ... words, the target in the middle"
            )
        if self.stride not in ("sliding", "disjoint"):
            raise ConfigurationError(f"the stride {self.stride!r} is unknown; known: sliding, disjoint")
        if not 0 <= self.sample < 1:
            raise ConfigurationError(f"sample is {self.sample}: it is a relative frequency, 0 or more and below 1")

    @property
    def step(self) -> int:
        """The distance of the starts of consecutive windows, in words."""
        return 1 if self.stride == "sliding" else self.width

    def keep_probabilities(self, counts: NDArray[np.int64]) -> NDArray[np.float32] | None:
        """Return the probability of keeping each word, with 1 for boundaries at the end; None if all words are kept.

        Mikolov et al. 2013, "Distributed representations of words and phrases", equation 5, in the form of word2vec's code:
        (sqrt(f / sample) + 1) * sample / f for a word of relative frequency f.
        """
        if not self.sample:
            return None
        ratio = counts / max(counts.sum(), 1) / self.sample
        with np.errstate(divide="ignore"):
            return np.append(np.minimum((np.sqrt(ratio) + 1) / ratio, 1), 1).astype(np.float32)


class ExcludedWindows:
    """The set of windows that are excluded from training.

    Parameters
    ----------
    windows : shape (n, width); may have duplicates.
    """

    def __init__(self, windows: Windows) -> None:
        from chimera.data.text import kernels

        self.rows: Windows = np.unique(windows, axis=0) if len(windows) else windows
        self.slots = np.full(1 << (4 * len(self.rows) + 1).bit_length(), -1, np.int32)
        kernels.hash_rows(self.rows, self.slots)


class Assembler:
    """The conversion of blocks of text to windows. It is stateless: the caller keeps the remaining tokens of a block.

    Parameters
    ----------
    table : word table of the vocabulary.
    vocabulary : the vocabulary; it needs counts for sub-sampling.
    excluded : windows to exclude.
    seed : seed of sub-sampling, combined with the number of the block, so that every pass has its own draws.
    """

    def __init__(
        self,
        table: WordTable,
        vocabulary: Vocabulary,
        windowing: Windowing,
        excluded: ExcludedWindows,
        seed: tuple[int, ...] = (),
    ) -> None:
        from chimera.data.text import kernels

        self._table, self._windowing, self._excluded, self._seed = table, windowing, excluded, seed
        self._assemble = kernels.assemble
        self._kept = None if vocabulary.counts is None else windowing.keep_probabilities(vocabulary.counts)

    def tokens(self, clean: Any, number: int) -> Tokens:
        """Return the indices of the known words of a block that sub-sampling keeps, and -1 for each boundary."""
        tokens = self._table.find(np.frombuffer(clean, np.uint8))
        if self._kept is None:
            return tokens
        draws = np.random.default_rng([*self._seed, number, *b"sample"]).random(len(tokens), np.float32)
        return tokens[draws < self._kept[tokens]]

    def windows(self, clean: Any, number: int, carry: Tokens) -> tuple[Windows, Tokens]:
        """Return the windows of a block, shape (n, width), and the tokens that begin the next window.

        Parameters
        ----------
        clean : the block, as clean text.
        number : number of the block.
        carry : remaining tokens of the block before.
        """
        return self.joined(np.concatenate((carry, self.tokens(clean, number))))

    def joined(self, tokens: Tokens) -> tuple[Windows, Tokens]:
        """Return the windows of a sequence of tokens, and the remaining tokens."""
        width, step = self._windowing.width, self._windowing.step
        out = np.empty((len(tokens) // step + 1, width), np.int32)
        written, over = self._assemble(tokens, step, self._excluded.rows, self._excluded.slots, out)
        return out[:written], tokens[len(tokens) - over :].copy()

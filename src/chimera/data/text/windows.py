"""From words to windows: sub-sampling, and runs of words with the target in the middle."""

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
    """How windows are taken from a run of words; words that the vocabulary lacks are not there at all.

    Attributes
    ----------
    width : words in a window, the target in the middle: odd, at least 3.
    stride : ``"sliding"``: a window for every word that has enough on both sides; ``"disjoint"``: each word is in one.
    sample : frequent words are left out at random, those more frequent than about this part of all words; 0 for none.
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
            raise ConfigurationError(f"sample is {self.sample}: it is a part of all words, 0 or more and below 1")

    @property
    def step(self) -> int:
        """How many words further the next window begins."""
        return 1 if self.stride == "sliding" else self.width

    def kept(self, counts: NDArray[np.int64]) -> NDArray[np.float32] | None:
        """Return with which probability each word is kept, and 1 for bounds at the end; None if all are.

        Mikolov et al. 2013, "Distributed representations of words and phrases", equation 5, as word2vec's code has it:
        (sqrt(f / sample) + 1) * sample / f for a word that is a part f of all.
        """
        if not self.sample:
            return None
        ratio = counts / max(counts.sum(), 1) / self.sample
        with np.errstate(divide="ignore"):
            return np.append(np.minimum((np.sqrt(ratio) + 1) / ratio, 1), 1).astype(np.float32)


class Held:
    """Windows that are kept out of training.

    Parameters
    ----------
    windows : shape (n, width); possibly the same one several times.
    """

    def __init__(self, windows: Windows) -> None:
        from chimera.data.text import kernels

        self.rows: Windows = np.unique(windows, axis=0) if len(windows) else windows
        self.slots = np.full(1 << (4 * len(self.rows) + 1).bit_length(), -1, np.int32)
        kernels.hash_rows(self.rows, self.slots)


class Assembler:
    """Makes windows of one block after the other. It remembers nothing: what a block leaves over is the caller's to keep.

    Parameters
    ----------
    table : of the vocabulary.
    vocabulary : with counts, if there is sub-sampling.
    held : windows that must not come out.
    seed : with the number of the block, that of sub-sampling; so every pass over the text draws anew.
    """

    def __init__(
        self, table: WordTable, vocabulary: Vocabulary, windowing: Windowing, held: Held, seed: tuple[int, ...] = ()
    ) -> None:
        from chimera.data.text import kernels

        self._table, self._windowing, self._held, self._seed = table, windowing, held, seed
        self._assemble = kernels.assemble
        self._kept = None if vocabulary.counts is None else windowing.kept(vocabulary.counts)

    def tokens(self, clean: Any, number: int) -> Tokens:
        """Return the indices of the known words of a block that are kept, and -1 for each bound."""
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
        number : the block's.
        carry : the tokens that the block before left over.
        """
        return self.joined(np.concatenate((carry, self.tokens(clean, number))))

    def joined(self, tokens: Tokens) -> tuple[Windows, Tokens]:
        """Return the windows of a run of tokens, and what is left over."""
        width, step = self._windowing.width, self._windowing.step
        out = np.empty((len(tokens) // step + 1, width), np.int32)
        written, over = self._assemble(tokens, step, self._held.rows, self._held.slots, out)
        return out[:written], tokens[len(tokens) - over :].copy()

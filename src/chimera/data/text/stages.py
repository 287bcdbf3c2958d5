"""The stages of a pipeline as actors: each holds the handle of the one before, and pulls from it with calls ahead.

A slow stage so holds back those before it. Stages are plain classes; `chimera.data.text.pipelines` spawns and mends them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConflictError
from chimera.data.text.calls import Calls
from chimera.data.text.source import Reader
from chimera.data.text.stream import OwnBlocks, WindowStream
from chimera.data.text.text import Text
from chimera.data.text.windows import NO_TOKENS, Tokens, Windows


class Tokenizer:
    """The first stage: reads a part of the text, block by block, and makes clean text of it.

    Parameters
    ----------
    text : what is read.
    index, parts : which part of how many.
    """

    def __init__(self, text: Text, index: int, parts: int) -> None:
        self._part = text.part(index, parts)
        self._reader = Reader(text.source)

    def block(self, number: int) -> NDArray[np.uint8]:
        """Return a block as clean text; they are numbered on and on, pass after pass."""
        return np.frombuffer(self._part.clean(self._reader, number), np.uint8)


class Filter:
    """The second stage: looks the words up, drops unknown and some frequent ones, and assembles windows.

    Parameters
    ----------
    text, index, parts : as for the `Tokenizer`.
    seed : of sub-sampling.
    tokenizer : the handle of the stage before.
    ahead : how many blocks it has the tokenizer make ahead.
    """

    def __init__(self, text: Text, index: int, parts: int, seed: int, tokenizer: Any, ahead: int) -> None:
        self._blocks = text.part(index, parts).blocks
        self._assembler = text.assembler(index, parts, seed)
        self._tokenizer = tokenizer
        self._calls = Calls(lambda number: self._tokenizer.block(number), 1, ahead)
        self._number, self._carry = 0, NO_TOKENS

    def seek(self, number: int, carry: Tokens) -> None:
        """Go on with this block; ``carry`` is what the one before left over."""
        self._number, self._carry = number, np.array(carry)

    def windows(self, number: int) -> tuple[Windows, Tokens]:
        """Return the windows of the block that comes next, and what it leaves over.

        Raises
        ------
        ConflictError : another block comes next, since one before it failed.
        ActorLost : the tokenizer is dead.
        """
        if number != self._number:
            raise ConflictError(f"block {number} is asked for, and {self._number} comes next: seek first")
        clean = self._calls.get(number)
        windows, carry = self._assembler.windows(clean, number, self._carry)
        self._number += 1
        self._carry = carry if self._number % self._blocks else NO_TOKENS
        return windows, self._carry

    def rewire(self, tokenizer: Any) -> None:
        """Take from another tokenizer from now on."""
        self._tokenizer = tokenizer
        self._calls.clear()

    def fill(self) -> float:
        """Return how full the queue before this stage is, 0 to 1."""
        return self._calls.fill()


class _PulledBlocks:
    """Blocks of windows that a `Filter` makes."""

    def __init__(self, filter_: Any, ahead: int) -> None:
        self.filter = filter_
        self.calls = Calls(lambda number: self.filter.windows(number), 1, ahead, self._enter)
        self._number, self._carry = 0, NO_TOKENS

    def seek(self, number: int, carry: Tokens) -> None:
        self._number, self._carry = number, carry
        self.calls.clear()

    def next(self) -> tuple[Windows, Tokens]:
        windows, carry = self.calls.get(self._number)
        self._number, self._carry = self._number + 1, np.array(carry)
        return np.array(windows), self._carry  # copies: what an engine lends is not kept

    def _enter(self, number: int) -> None:
        self.filter.seek(number, self._carry)


class Outlet:
    """The end of a pipeline, where learners ask for windows.

    Parameters
    ----------
    stream : all windows of the part.
    """

    def __init__(self, stream: WindowStream) -> None:
        self._stream = stream
        self._given: int | None = None

    def windows(self, begin: int, count: int) -> Windows:
        """Return windows ``begin`` to ``begin + count`` of the part's endless stream: for one learner alone."""
        return self._stream.take(begin, count)

    def next_windows(self, count: int, begin: int = 0) -> Windows:
        """Return windows that nobody was given yet: for learners that share it. The first who asks says where to begin."""
        first = begin if self._given is None else self._given
        windows = self._stream.take(first, count)
        self._given = first + count
        return windows


class Batcher(Outlet):
    """The third stage: gathers windows into blocks of as many as are asked for, and hands them to whoever asks.

    Parameters
    ----------
    text, index, parts : as for the `Tokenizer`.
    filter_ : the handle of the stage before.
    ahead : how many blocks it has the filter make ahead.
    """

    def __init__(self, text: Text, index: int, parts: int, filter_: Any, ahead: int) -> None:
        self._pulled = _PulledBlocks(filter_, ahead)
        super().__init__(text.stream_of(self._pulled, index, parts))

    def rewire(self, filter_: Any) -> None:
        """Take from another filter from now on."""
        self._pulled.filter = filter_
        self._pulled.calls.clear()

    def fill(self) -> float:
        """Return how full the queue before this stage is, 0 to 1."""
        return self._pulled.calls.fill()


class Pipeline(Outlet):
    """All three stages in one: no queue between them, and nothing to hand over.

    Parameters
    ----------
    text, index, parts, seed : as for the `Filter`.
    """

    def __init__(self, text: Text, index: int, parts: int, seed: int) -> None:
        blocks = OwnBlocks(text.part(index, parts), text.assembler(index, parts, seed))
        super().__init__(text.stream_of(blocks, index, parts))

"""The stages of a pipeline, as actors. Each stage pulls from the one before it, with a bounded number of calls in flight.

So a slow stage gives backpressure to the stages before it. `chimera.data.text.pipeline.pipelines` spawns and replaces them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConflictError
from chimera.data.text.pipeline.prefetch import PrefetchQueue
from chimera.data.text.reading.source import Reader
from chimera.data.text.stream import LocalBlocks, WindowStream
from chimera.data.text.text import Text
from chimera.data.text.windows import NO_TOKENS, Tokens, Windows


class Tokenizer:
    """The first stage. It reads a part of the text block by block, and converts it to clean text.

    Parameters
    ----------
    text : the text to read.
    index, parts : index of the part, and the number of parts.
    """

    def __init__(self, text: Text, index: int, parts: int) -> None:
        self._part = text.part(index, parts)
        self._reader = Reader(text.source)

    def block(self, number: int) -> NDArray[np.uint8]:
        """Return a block as clean text. Block numbers increase without end over all passes."""
        return np.frombuffer(self._part.clean(self._reader, number), np.uint8)


class Filter:
    """The second stage. It looks up words, drops unknown and some frequent ones, and assembles windows.

    Parameters
    ----------
    text, index, parts : as for the `Tokenizer`.
    seed : seed of sub-sampling.
    tokenizer : handle of the first stage.
    ahead : number of blocks that it requests ahead from the tokenizer.
    """

    def __init__(self, text: Text, index: int, parts: int, seed: int, tokenizer: Any, ahead: int) -> None:
        self._blocks = text.part(index, parts).blocks
        self._assembler = text.assembler(index, parts, seed)
        self._tokenizer = tokenizer
        self._calls = PrefetchQueue(lambda number: self._tokenizer.block(number), 1, ahead)
        self._number, self._carry = 0, NO_TOKENS

    def seek(self, number: int, carry: Tokens) -> None:
        """Continue with this block; ``carry`` holds the remaining tokens of the block before."""
        self._number, self._carry = number, np.array(carry)

    def windows(self, number: int) -> tuple[Windows, Tokens]:
        """Return the windows of the next block, and its remaining tokens.

        Raises
        ------
        ConflictError : ``number`` is not the next block, because one before it failed.
        ActorLost : the tokenizer is dead.
        """
        if number != self._number:
            raise ConflictError(f"block {number} was requested, but {self._number} is next: call seek first")
        clean = self._calls.get(number)
        windows, carry = self._assembler.windows(clean, number, self._carry)
        self._number += 1
        self._carry = carry if self._number % self._blocks else NO_TOKENS
        return windows, self._carry

    def reconnect(self, tokenizer: Any) -> None:
        """Pull from another tokenizer from now on."""
        self._tokenizer = tokenizer
        self._calls.clear()

    def fill(self) -> float:
        """Return the fill of this stage's input queue, 0 to 1."""
        return self._calls.fill()


class _FilterBlocks:
    """Blocks of windows from a `Filter`."""

    def __init__(self, filter_: Any, ahead: int) -> None:
        self.filter = filter_
        self.calls = PrefetchQueue(lambda number: self.filter.windows(number), 1, ahead, self._seek_filter)
        self._number, self._carry = 0, NO_TOKENS

    def seek(self, number: int, carry: Tokens) -> None:
        self._number, self._carry = number, carry
        self.calls.clear()

    def next(self) -> tuple[Windows, Tokens]:
        windows, carry = self.calls.get(self._number)
        self._number, self._carry = self._number + 1, np.array(carry)
        return np.array(windows), self._carry  # copies: the engine reuses its memory

    def _seek_filter(self, number: int) -> None:
        self.filter.seek(number, self._carry)


class OutputStage:
    """The last stage of a pipeline, from which learners request windows.

    Parameters
    ----------
    stream : the windows of the part.
    """

    def __init__(self, stream: WindowStream) -> None:
        self._stream = stream
        self._next_window: int | None = None

    def windows(self, begin: int, count: int) -> Windows:
        """Return windows ``begin`` to ``begin + count`` of the part's endless stream, for a single learner."""
        return self._stream.take(begin, count)

    def next_windows(self, count: int, begin: int = 0) -> Windows:
        """Return the next windows, for learners that share the pipeline. The first request sets the start."""
        first = begin if self._next_window is None else self._next_window
        windows = self._stream.take(first, count)
        self._next_window = first + count
        return windows


class Batcher(OutputStage):
    """The third stage. It collects windows into blocks of the requested size.

    Parameters
    ----------
    text, index, parts : as for the `Tokenizer`.
    filter_ : handle of the second stage.
    ahead : number of blocks that it requests ahead from the filter.
    """

    def __init__(self, text: Text, index: int, parts: int, filter_: Any, ahead: int) -> None:
        self._blocks_of_filter = _FilterBlocks(filter_, ahead)
        super().__init__(text.stream_of(self._blocks_of_filter, index, parts))

    def reconnect(self, filter_: Any) -> None:
        """Pull from another filter from now on."""
        self._blocks_of_filter.filter = filter_
        self._blocks_of_filter.calls.clear()

    def fill(self) -> float:
        """Return the fill of this stage's input queue, 0 to 1."""
        return self._blocks_of_filter.calls.fill()


class Pipeline(OutputStage):
    """All three stages in one actor, without queues and transfers between them.

    Parameters
    ----------
    text, index, parts, seed : as for the `Filter`.
    """

    def __init__(self, text: Text, index: int, parts: int, seed: int) -> None:
        blocks = LocalBlocks(text.part(index, parts), text.assembler(index, parts, seed))
        super().__init__(text.stream_of(blocks, index, parts))

"""A text as a training set of context windows, which are made while the text is read."""

from __future__ import annotations

import hashlib
import os
import warnings
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError
from chimera.data.dataset import Dataset
from chimera.data.readers.arrays import Task
from chimera.data.text.held_out import read_windows
from chimera.data.text.pipeline.orders import BatchSpec, TextOrder, text_orders
from chimera.data.text.reading.source import Paths, Source
from chimera.data.text.reading.tokens import Bounds, Part, Rules
from chimera.data.text.statistics import text_statistics
from chimera.data.text.stop_words import stop_words as excluded_words
from chimera.data.text.stream import Blocks, LocalBlocks, ShuffledBlocks, WindowStream
from chimera.data.text.unigram import unigram_cross_entropy
from chimera.data.text.vocabulary import Vocabulary
from chimera.data.text.windows import Assembler, ExcludedWindows, Stride, Windowing, Windows
from chimera.data.text.words import WordTable

if TYPE_CHECKING:
    from chimera.core.engine import Engine
    from chimera.data.provider import DataProvider

Batch: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64]]

_EMPTY_PASSES = 100
"""Number of passes without a window, due to sub-sampling, after which a part counts as too short."""


@dataclass(frozen=True, eq=False)
class Text:
    """Text files, a vocabulary, and the rules that make windows of them. `Text.of` creates one.

    It has the interface of a `Dataset` of training samples, but holds no samples, so it is small to send. Each process reads
    the files itself, and must have them under the same paths. A batch is (inputs, targets): the indices of the context words,
    int64 (n, width - 1), and of the middle words, int64 (n,).

    Attributes
    ----------
    source, rules, vocabulary, windowing : the files, the definition of a word, the known words with their counts, and the
        definition of windows.
    test : the test windows, a data set.
    held_out : whether test windows are excluded from training, at all positions where the same words occur.
    windows : number of training windows in a pass over the text without sub-sampling. A test window that occurs several
        times in the text is subtracted once.
    content : a hash of the words in the files.
    shuffle : whether windows are shuffled within ranges of some megabytes of text; by default they are in text order.
    pipelines, stages, ahead : see `Pipelines`; with 0 pipelines each learner reads its own part itself.
    """

    source: Source
    rules: Rules
    vocabulary: Vocabulary
    windowing: Windowing
    test: Dataset
    windows: int
    content: str
    held_out: bool = True
    shuffle: bool = False
    pipelines: int = 0
    stages: Literal["fused", "apart"] = "fused"
    ahead: int = 2
    features: None = field(default=None, init=False)
    input_scaling: None = field(default=None, init=False)
    target_scaling: None = field(default=None, init=False)
    _streams: dict[tuple[int, int, int], WindowStream] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(
        cls,
        paths: Paths,
        *,
        vocabulary: str | os.PathLike[str] | Vocabulary | None = None,
        vocabulary_size: int | None = None,
        min_count: int = 1,
        stop_words: str | os.PathLike[str] | None = None,
        width: int = 5,
        stride: Stride = "sliding",
        bounds: Bounds = None,
        sample: float = 0.0,
        number_token: str | None = None,
        longest: int | None = None,
        test: str | os.PathLike[str] | None = None,
        test_windows: int = 1000,
        seed: int = 0,
        shuffle: bool = False,
        pipelines: int = 0,
        stages: Literal["fused", "apart"] = "fused",
        ahead: int = 2,
    ) -> Text:
        """Read a text: one pass if the vocabulary is given, otherwise a second one to build it.

        Parameters
        ----------
        paths : a file, plain or gzip, a folder with such files, or a list of both.
        vocabulary : the known words, or a file of them; by default the words of the text.
        vocabulary_size : maximum number of known words; the most frequent ones are kept. Default all.
        min_count : minimum number of occurrences of a known word in the text.
        stop_words : words to exclude from the vocabulary: ``"english"``, or a file of them.
        width, stride, sample : see `Windowing`.
        bounds, number_token, longest : see `Rules`.
        test : a file of test windows, one per line, the target in the middle. If the text contains them, they are not
            excluded from training.
        test_windows : without such a file, the number of windows of the text that are excluded from training for the test.
        seed : seed of their choice.
        shuffle, pipelines, stages, ahead : see `Text`.

        Raises
        ------
        DataError : files are missing, empty or not text; there are no known words, or too few for a window.
        ConfigurationError : options conflict, or values are out of range.
        """
        if test_windows < 1:
            raise ConfigurationError(f"test_windows is {test_windows}: at least 1 is needed")
        if seed < 0:
            raise ConfigurationError(f"the seed is {seed}: it must be 0 or more")
        rules, windowing = Rules(number_token, longest, bounds), Windowing(width, stride, sample)
        choice = {"vocabulary_size": vocabulary_size, "min_count": min_count if min_count != 1 else None}
        choice["stop_words"] = stop_words  # type: ignore[assignment]
        if vocabulary is not None and (idle := [name for name, value in choice.items() if value is not None]):
            raise ConfigurationError(f"{idle[0]} has no effect if a vocabulary is given: remove one of them")
        excluded = excluded_words(stop_words)
        given = vocabulary if isinstance(vocabulary, Vocabulary | None) else Vocabulary.read(vocabulary)
        source = Source.of(paths)
        if given is None:
            given = Vocabulary.build(source, rules, size=vocabulary_size, min_count=min_count, stop_words=excluded)
        elif unknown := given.unreachable(rules):
            warnings.warn(
                f"{len(unknown)} words of the vocabulary cannot occur in a text, such as {unknown[0]!r}: "
                "words are sequences of the letters a to z, in lower case",
                RuntimeWarning,
                stacklevel=2,
            )
        test_part = test_windows if test is None else read_windows(test, given, rules, width)
        found = text_statistics(Part.of(source, rules, 0, 1), given, windowing, test_part, seed)
        inputs, targets = as_batch(found.test)
        known = given.with_counts(found.counts)
        tested = Dataset(inputs, targets, known.words, name=f"{source.name}, test windows")
        read = source, rules, known, windowing, tested, found.windows, found.content
        return cls(*read, test is None, shuffle, pipelines, stages, ahead)

    def __len__(self) -> int:
        """The number of training windows in a pass over the text; approximate with sub-sampling."""
        kept = self.windowing.keep_probabilities(self.counts)
        share = 1.0 if kept is None else float((self.counts * kept[:-1]).sum() / self.counts.sum())
        return max(round(self.windows * share), 1)

    @property
    def counts(self) -> NDArray[np.int64]:
        """The number of occurrences of each word of the vocabulary in the text."""
        assert self.vocabulary.counts is not None  # `of` has counted them
        return self.vocabulary.counts

    @property
    def name(self) -> str:
        """The name in messages and reports."""
        return self.source.name

    @property
    def classes(self) -> tuple[str, ...]:
        """The words, in the order of their indices."""
        return self.vocabulary.words

    @property
    def outputs(self) -> int:
        """The number of known words."""
        return len(self.vocabulary)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input: the context words of a window."""
        return (self.windowing.width - 1,)

    @property
    def task(self) -> Task:
        """``"classification"``: a word is predicted."""
        return "classification"

    def fingerprint(self) -> str:
        """Return a hash of the text, the vocabulary, the options and the test windows, 64 hexadecimal digits."""
        options = (self.content, self.rules, self.windowing, self.vocabulary.words, self.held_out, self.shuffle)
        content = hashlib.sha256(repr(options).encode())
        for array in (self.counts, self.test.inputs, self.test.targets):
            content.update(array.tobytes())
        return content.hexdigest()

    def take(self, spec: BatchSpec, key: tuple[int, ...] = ()) -> Batch:  # noqa: ARG002 - nothing is random
        """Return the batch that an order of this text described for a step."""
        return as_batch(spec.windows(self))

    def orders(self, world_size: int, batch_size: int, seed: int, *, since: int = 0, begin: int = 0) -> list[TextOrder]:
        """Return the order of each learner, if each reads its own part itself.

        Parameters
        ----------
        since, begin : first step of the orders, and the number of windows that all learners took before it.
        """
        return text_orders(len(self), world_size, batch_size, seed, since=since, begin=begin)

    def provider(self, engine: Engine, partition: Any, *, workers: int, batch_size: int, seed: int) -> DataProvider:
        """Return the provider of windows for the learners, with or without pipelines.

        Raises
        ------
        ConfigurationError : a partition is set, which has no effect on a text, or there are more pipelines than learners.
        """
        from chimera.data.text.pipeline.pipelines import Pipelines
        from chimera.data.text.pipeline.provider import DirectReading, PipelinedReading

        if not getattr(partition, "global_order", False):
            raise ConfigurationError(
                "a text is divided into contiguous parts, one per learner or pipeline: leave the partition at 'iid'"
            )
        if not self.pipelines:
            return DirectReading(self, batch_size, seed)
        made = Pipelines(
            engine, self, pipelines=self.pipelines, learners=workers, seed=seed, stages=self.stages, ahead=self.ahead
        )
        return PipelinedReading(engine, made, batch_size, engine.virtual_time)

    def figures(self) -> dict[str, Any]:
        """Return the figures of the text for the summary of a run, with the test loss of its unigram model."""
        return {
            "vocabulary": self.outputs,
            "words": int(self.counts.sum()),
            "windows": self.windows,
            "unigram_loss": unigram_cross_entropy(self.counts, self.test.targets),
        }

    def part(self, index: int, parts: int) -> Part:
        """Return one of ``parts`` parts of the text of equal length."""
        return Part.of(self.source, self.rules, index, parts)

    def assembler(self, index: int, parts: int, seed: int) -> Assembler:
        """Return the assembler of windows of a part; the seed is that of sub-sampling."""
        return Assembler(self._table, self.vocabulary, self.windowing, self._excluded, (seed, index, parts))

    def stream(self, index: int, parts: int, seed: int) -> WindowStream:
        """Return the windows of a part, made in this process. The stream is cached until ``parts`` or ``seed`` change."""
        key = (index, parts, seed)
        if key not in self._streams:
            for other in [other for other in self._streams if other[1:] != key[1:]]:
                del self._streams[other]
            blocks = LocalBlocks(self.part(index, parts), self.assembler(*key))
            self._streams[key] = self.stream_of(blocks, index, parts)
        return self._streams[key]

    def stream_of(self, blocks: Blocks, index: int, parts: int) -> WindowStream:
        """Return the windows of a part, made from these blocks of it."""
        empty_blocks = self.part(index, parts).blocks * (_EMPTY_PASSES if self.windowing.sample else 1)
        name = f"part {index + 1} of {parts} of {self.name}" if parts > 1 else self.name
        if self.shuffle:
            blocks = ShuffledBlocks(blocks, (index, parts))
        return WindowStream(blocks, max_empty_blocks=empty_blocks, name=name)

    @cached_property
    def _table(self) -> WordTable:
        return self.vocabulary.table(self.rules)

    @cached_property
    def _excluded(self) -> ExcludedWindows:
        half = self.windowing.width // 2
        if not self.held_out:
            return ExcludedWindows(np.empty((0, self.windowing.width), np.int32))
        return ExcludedWindows(np.insert(self.test.inputs, half, self.test.targets, axis=1).astype(np.int32))

    def __getstate__(self) -> dict[str, Any]:
        rebuilt = {"_table": None, "_excluded": None, "_streams": None}
        kept = {key: value for key, value in self.__dict__.items() if key not in rebuilt}
        return kept | {"test": (self.test.inputs, self.test.targets, self.test.name)}  # its classes are the vocabulary

    def __setstate__(self, state: dict[str, Any]) -> None:
        inputs, targets, name = state["test"]
        test = Dataset(inputs, targets, state["vocabulary"].words, name=name)
        self.__dict__.update(state | {"test": test, "_streams": {}})


def as_batch(windows: Windows) -> Batch:
    """Return windows, shape (n, width), as context words, int64 (n, width - 1), and middle words, int64 (n,)."""
    half = windows.shape[1] // 2
    inputs = np.empty((len(windows), 2 * half), np.int64)
    inputs[:, :half] = windows[:, :half]
    inputs[:, half:] = windows[:, half + 1 :]
    return inputs, windows[:, half].astype(np.int64)

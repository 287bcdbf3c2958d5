"""Data sets that can only be read in sequence: iterable data sets of torch and Hugging Face, and generator functions."""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

from chimera.core.batch import Batch, targets_of
from chimera.core.errors import ConfigurationError, DataError
from chimera.data.collation import (
    Collate,
    FirstBatch,
    as_host_array,
    check_finite,
    classes_of,
    collated,
    read_only_arrays,
)
from chimera.data.partition import Partitioner
from chimera.data.randomness import seeded
from chimera.data.stream import Stream, StreamBatch, StreamState, decoded, encoded, started

if TYPE_CHECKING:
    from chimera.data.stream_provider import StreamData

COUNT_S = 20.0
"""Seconds for which the samples of a data set of unknown length are counted."""


@dataclass(eq=False)
class IterableSamples(FirstBatch):
    """A data set that is read in sequence, again from its start when it has ended.

    Each worker keeps its place in the stream. A worker that resumes loads the state of the data set from the checkpoint, if the
    data set has ``state_dict`` and ``load_state_dict``; otherwise it reads the stream up to its place. Random numbers
    that reading draws from `random`, NumPy or torch depend on seed, rank and step. So a data set that shuffles must use
    its own generator with a fixed seed.

    Attributes
    ----------
    source : an object with ``__iter__`` such as a ``torch.utils.data.IterableDataset``, or a function without arguments that
        returns an iterator. Data sets of Hugging Face are divided among the workers by their own shards.
    samples : samples per epoch.
    collate : function of a list of samples that returns a batch; default: torch's ``default_collate``.
    name : name of the data set in messages and reports.
    found : the samples of one pass, at most ``samples``, once the data set was read that far; None before.
    """

    immutable: ClassVar[bool] = True  # except the places of the streams, each of which belongs to one rank

    source: Any
    samples: int
    collate: Collate | None = None
    name: str = "data"
    found: int | None = field(default=None, init=False)
    _streams: dict[tuple[int, ...], Stream] = field(default_factory=dict, repr=False)
    _restored: dict[tuple[int, ...], StreamState] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ConfigurationError(f"an iterable data set needs samples of at least 1 per epoch, not {self.samples}")
        if hasattr(self.source, "__next__"):
            raise ConfigurationError(
                f"a {type(self.source).__name__} can be read only once: give the function or the data set that makes it"
            )

    def __len__(self) -> int:
        return self.samples

    def take(self, batch: StreamBatch, key: tuple[int, ...] = ()) -> Batch:
        """Read and collate the samples of a batch.

        Parameters
        ----------
        key : determines the random numbers that reading draws, such as (seed, rank, step).

        Raises
        ------
        DataError : the data set is empty; the samples cannot be collated, or have NaN or infinite numbers.
        """
        stream = self._streams.get(key[:2])
        if stream is None or not stream.leads_to(batch):
            stream = self._streams[key[:2]] = self._stream_to(batch, key[:2])
        with read_only_arrays(), self._named(stream.place):
            stream.skip(batch.first - stream.place)
        with seeded(key), read_only_arrays(), self._named(batch.first):
            samples = stream.read(batch.count)
            made = collated(samples, self.collate, self.name, range(batch.first, batch.first + batch.count))
        check_finite(made, self.name, range(batch.first, batch.first + batch.count))
        return made

    def place(self, reader: tuple[int, ...]) -> bytes:
        """Return the place of a reader's stream, with the state of the data set; empty if the data set keeps none.

        Parameters
        ----------
        reader : the first two integers of the reader's keys, see `take`.
        """
        stream = self._streams.get(reader)
        found = None if stream is None else stream.state()
        return b"" if found is None else encoded(found)

    def go_to(self, reader: tuple[int, ...], place: bytes) -> None:
        """Continue a reader's stream at a place that `place` returned, unless the next batch is before it.

        Raises
        ------
        DataError : the place is damaged.
        """
        self._restored[reader] = decoded(place)
        self._streams.pop(reader, None)

    def _stream_to(self, batch: StreamBatch, reader: tuple[int, ...]) -> Stream:
        """Return the stream whose place is the nearest one before a batch."""
        restored = self._restored.get(reader)
        if restored is not None:
            stream = Stream(self.source, batch.shard, batch.shards, self.name, restored)
            if stream.leads_to(batch):
                return stream
        return Stream(self.source, batch.shard, batch.shards, self.name)

    def whole(self, indices: Any = None) -> IterableSamples:  # noqa: ARG002 - rows have no numbers
        """Return the data set, for evaluation of the first ``samples`` samples."""
        return self

    def pieces(self, rows: int) -> Iterator[Batch]:
        """Yield the first ``samples`` samples in batches of at most ``rows``; the same random numbers each time.

        If the data set ends before, the batches have fewer samples: no sample is evaluated twice.
        """
        left, found = Stream(self.source, 0, 1, self.name).first_pass(), 0
        for begin in range(0, self.samples, rows):
            with seeded((begin,)), read_only_arrays(), self._named(begin):
                samples = list(islice(left, min(rows, self.samples - begin)))
                if not samples and not begin:
                    raise DataError(f"the data set {self.name!r} is empty")
                if not samples:
                    break
                found += len(samples)
                made = collated(samples, self.collate, self.name, range(begin, begin + len(samples)))
            check_finite(made, self.name, range(begin, begin + len(samples)))
            yield made
        self.found = found

    @contextmanager
    def _named(self, first: int) -> Iterator[None]:
        """Add the place in the data set to errors."""
        try:
            yield
        except Exception as error:
            if not isinstance(error, DataError):
                error.add_note(f"while samples from number {first} of the data set {self.name!r} were read")
            raise

    def provider(
        self,
        engine: Any,  # noqa: ARG002 - the workers read themselves
        partition: Partitioner,
        *,
        workers: int,  # noqa: ARG002
        batch_size: int,
        seed: int,  # noqa: ARG002 - the stream has its own order
    ) -> StreamData:
        """Return the provider of a run.

        Raises
        ------
        ConfigurationError : the partition is not ``iid``.
        """
        if not getattr(partition, "global_order", False):
            raise ConfigurationError(
                f"{self.name!r} is read in sequence, so its samples cannot be partitioned: use partition 'iid'"
            )
        from chimera.data.stream_provider import StreamData  # imports the module that imports this one

        return StreamData(self, batch_size)

    @cached_property
    def first(self) -> Batch:
        """A batch of the first sample."""
        return next(replace(self, samples=1, _streams={}, _restored={}).pieces(1))

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of the classes, if the data set knows them."""
        return classes_of(self.source) if self.task == "classification" else None

    def largest_target(self) -> int:
        """Return the largest class index; the whole epoch is read."""
        return max(int(as_host_array(targets_of(piece)).max()) for piece in self.pieces(256))

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_streams": {}, "_restored": {}}


def counted(source: Any, name: str) -> int:
    """Return the number of samples of one pass over a data set.

    Raises
    ------
    ConfigurationError : the pass takes longer than `COUNT_S`.
    """
    stop_s = time.monotonic() + COUNT_S
    samples = 0
    with seeded((0,)), read_only_arrays():
        for _ in started(source, 0):
            samples += 1
            if time.monotonic() > stop_s:
                raise ConfigurationError(
                    f"{name!r} is read in sequence, and counting its samples takes longer than {COUNT_S:g} s: give the samples "
                    "of an epoch by chimera.IterableSamples(data, samples=N)"
                )
    return samples


def is_iterable(value: Any) -> bool:
    """Return whether a value is an iterable data set, or a generator function."""
    if inspect.isgeneratorfunction(value):
        return True
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.utils.data.IterableDataset):
        return True
    return type(value).__module__.partition(".")[0] == "datasets" and not hasattr(value, "__getitem__")

"""Data sets that can only be read in sequence: iterable data sets of torch and Hugging Face, and generator functions."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

from chimera.core.batch import Batch, targets_of
from chimera.core.errors import ConfigurationError, DataError
from chimera.data.collation import Collate, FirstBatch, as_host_array, check_finite, classes_of, collated
from chimera.data.partition import Partitioner
from chimera.data.randomness import seeded

if TYPE_CHECKING:
    from chimera.data.stream_provider import StreamData


@dataclass(frozen=True)
class StreamBatch:
    """The samples of one batch: ``count`` samples of the stream of a worker, from number ``first``.

    Attributes
    ----------
    shard, shards : the part of the data set that the stream reads; 0 of 1 is all of it.
    """

    first: int
    count: int
    shard: int
    shards: int


@dataclass(eq=False)
class IterableSamples(FirstBatch):
    """A data set that is read in sequence, again from its start when it has ended.

    Each worker keeps its place in the stream. A worker that resumes reads on to its place. Random numbers that reading draws
    from `random`, NumPy or torch depend on seed, rank and step; so a data set that shuffles must use a generator of its own,
    with a fixed seed.

    Attributes
    ----------
    source : an object with ``__iter__`` such as a ``torch.utils.data.IterableDataset``, or a function without arguments that
        returns an iterator. Data sets of Hugging Face are divided among the workers by their own shards.
    samples : samples per epoch.
    collate : function of a list of samples that returns a batch; default: torch's ``default_collate``.
    name : name of the data set in messages and reports.
    """

    immutable: ClassVar[bool] = True  # but for the places of the streams, which belong to one rank each

    source: Any
    samples: int
    collate: Collate | None = None
    name: str = "data"
    _streams: dict[tuple[Any, ...], _Stream] = field(default_factory=dict, repr=False)

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
        reader = (batch.shard, batch.shards, *key[:2])
        stream = self._streams.get(reader)
        if stream is None or stream.place > batch.first:
            stream = self._streams[reader] = _Stream(self, batch.shard, batch.shards)
        stream.skip(batch.first - stream.place)
        with seeded(key):
            samples = stream.read(batch.count)
            made = collated(samples, self.collate, self.name, range(batch.first, batch.first + batch.count))
        check_finite(made, self.name, range(batch.first, batch.first + batch.count))
        return made

    def whole(self, indices: Any = None) -> IterableSamples:  # noqa: ARG002 - rows have no numbers
        """Return the data set, for evaluation of the first ``samples`` samples."""
        return self

    def pieces(self, rows: int) -> Iterator[Batch]:
        """Yield the first ``samples`` samples in batches of at most ``rows``; the same random numbers each time."""
        stream = _Stream(self, 0, 1)
        for begin in range(0, self.samples, rows):
            with seeded((begin,)):
                samples = stream.read(min(rows, self.samples - begin))
                made = collated(samples, self.collate, self.name, range(begin, begin + len(samples)))
            check_finite(made, self.name, range(begin, begin + len(samples)))
            yield made

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
        if not getattr(partition, "dealt", False):
            raise ConfigurationError(
                f"{self.name!r} is read in sequence, so its samples cannot be partitioned: use partition 'iid'"
            )
        from chimera.data.stream_provider import StreamData  # imports the module that imports this one

        return StreamData(self, batch_size)

    @cached_property
    def first(self) -> Batch:
        """A batch of the first sample."""
        return next(replace(self, samples=1, _streams={}).pieces(1))

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of the classes, if the data set knows them."""
        return classes_of(self.source) if self.task == "classification" else None

    def largest_target(self) -> int:
        """Return the largest class index of an epoch, all of which is read."""
        return max(int(as_host_array(targets_of(piece)).max()) for piece in self.pieces(256))

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_streams": {}}


class _Stream:
    """A place in the endless repetition of a data set, or of one of its shards."""

    def __init__(self, data: IterableSamples, shard: int, shards: int) -> None:
        self._data, self._source = data, _shard_of(data.source, shard, shards)
        self._epoch, self.place = -1, 0
        self._samples: Iterator[Any] = iter(())

    def read(self, count: int) -> list[Any]:
        """Return the next samples; the data set starts again where it ends."""
        found: list[Any] = list(islice(self._samples, count))
        while len(found) < count:
            self._epoch += 1
            self._samples = _started(self._source, self._epoch)
            more = list(islice(self._samples, count - len(found)))
            if not more:
                raise DataError(f"the data set {self._data.name!r} is empty")
            found += more
        self.place += count
        return found

    def skip(self, count: int) -> None:
        """Read samples and drop them."""
        while count > 0:
            count -= len(self.read(min(count, 256)))


def is_iterable(value: Any) -> bool:
    """Return whether a value is an iterable data set, or a generator function."""
    if inspect.isgeneratorfunction(value):
        return True
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.utils.data.IterableDataset):
        return True
    return type(value).__module__.partition(".")[0] == "datasets" and not hasattr(value, "__getitem__")


def can_be_sharded(source: Any) -> bool:
    """Return whether a data set is one of Hugging Face, which divides itself."""
    return type(source).__module__.partition(".")[0] == "datasets"


def _shard_of(source: Any, shard: int, shards: int) -> Any:
    if shards == 1:
        return source
    from datasets.distributed import split_dataset_by_node

    return split_dataset_by_node(source, rank=shard, world_size=shards)


def _started(source: Any, epoch: int) -> Iterator[Any]:
    """Return an iterator over an epoch of a data set."""
    set_epoch: Callable[[int], None] | None = getattr(source, "set_epoch", None)
    if set_epoch is not None:
        set_epoch(epoch)
    return iter(source() if callable(source) and not hasattr(source, "__iter__") else source)

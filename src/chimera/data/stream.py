"""Places in data that can only be read in sequence, with the state of a data set that offers one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec

from chimera.core.errors import DataError
from chimera.core.pickling import PicklingError, pickled_by_value, unpickled

MAX_STATE_BYTES = 1 << 20
"""A larger state is not kept: a worker that resumes then reads the stream up to its place."""
_LIBRARIES = ("datasets.", "torchdata.", "torch.utils.data.sampler")


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


class StreamState(msgspec.Struct, frozen=True):
    """A place in a stream, and the state of the data set there.

    Attributes
    ----------
    place : samples of the stream before this place.
    epoch : passes over the data set before this one.
    shard, shards : see `StreamBatch`.
    state : the result of the data set's ``state_dict``.
    """

    place: int
    epoch: int
    shard: int
    shards: int
    state: dict[str, Any]


class Stream:
    """A place in the endless repetition of a data set, or of one of its shards.

    Parameters
    ----------
    source : see `chimera.data.iterable.IterableSamples`.
    shard, shards : see `StreamBatch`.
    name : name of the data set in messages.
    start : the place to start from; default: the first sample. It must be of the same shard.

    Attributes
    ----------
    place : number of the next sample.
    """

    def __init__(self, source: Any, shard: int, shards: int, name: str, start: StreamState | None = None) -> None:
        self._name, self._shard, self._shards = name, shard, shards
        own = _own_copy(source) if keeps_state(source) else None
        self._keeps_state = own is not None
        self._source = _shard_of(source if own is None else own, shard, shards)
        self._epoch, self.place = -1, 0
        self._samples: Iterator[Any] = iter(())
        if start is not None and (start.shard, start.shards) == (shard, shards) and self._keeps_state:
            self._epoch, self.place = start.epoch, start.place
            self._source.load_state_dict(start.state)
            self._samples = started(self._source, start.epoch)

    def leads_to(self, batch: StreamBatch) -> bool:
        """Return whether the batch is of the same shard, and not before this place."""
        return (self._shard, self._shards) == (batch.shard, batch.shards) and self.place <= batch.first

    def state(self) -> StreamState | None:
        """Return the place and the state of the data set; None if the data set has none, or one that is not plain data."""
        if not self._keeps_state or self._epoch < 0:
            return None
        held = StreamState(self.place, self._epoch, self._shard, self._shards, self._source.state_dict())
        try:
            return held if decoded(encoded(held)) == held else None
        except (TypeError, OverflowError, RecursionError, DataError):
            return None

    def read(self, count: int) -> list[Any]:
        """Return the next samples; the data set starts again where it ends."""
        found: list[Any] = list(islice(self._samples, count))
        while len(found) < count:
            self._epoch += 1
            self._samples = started(self._source, self._epoch)
            more = list(islice(self._samples, count - len(found)))
            if not more:
                raise DataError(f"the data set {self._name!r} is empty")
            found += more
        self.place += count
        return found

    def first_pass(self) -> Iterator[Any]:
        """Return an iterator over the samples of one pass, from the first sample."""
        self._epoch = 0
        return started(self._source, self._epoch)

    def skip(self, count: int) -> None:
        """Read samples and drop them."""
        while count > 0:
            count -= len(self.read(min(count, 256)))


def encoded(state: StreamState) -> bytes:
    """Return a place as bytes."""
    return msgspec.msgpack.encode(state)


def decoded(content: bytes) -> StreamState:
    """Return the place that `encoded` turned into bytes.

    Raises
    ------
    DataError : the bytes are no such place.
    """
    if len(content) > MAX_STATE_BYTES:
        raise DataError(f"the place of a stream in the checkpoint is damaged: it has {len(content):,} bytes")
    try:
        state = msgspec.msgpack.decode(content, type=StreamState)
    except (msgspec.MsgspecError, RecursionError, TypeError) as error:
        raise DataError(f"the place of a stream in the checkpoint is damaged: {error}") from error
    if min(state.place, state.epoch, state.shard, state.shards - 1) < 0:
        raise DataError(f"the place of a stream in the checkpoint is damaged: {state.place} of epoch {state.epoch}")
    return state


def keeps_state(source: Any) -> bool:
    """Return whether a data set returns its state, and continues from it exactly.

    States of Hugging Face lack the samples in a shuffle buffer, and those of torchdata the generator of a sampler.
    """
    if not hasattr(source, "state_dict") or not hasattr(source, "load_state_dict"):
        return False
    return not any(
        hasattr(part, "buffer_size") or (hasattr(part, "generator") and not hasattr(part, "state_dict"))
        for part in _parts(source)
    )


def _parts(source: Any) -> Iterator[Any]:
    """Yield the objects of the two libraries and the samplers of torch in a data set."""
    left, seen = [source], set[int]()
    while left:
        part = left.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, list | tuple):
            left += part
        elif isinstance(part, dict):
            left += part.values()
        elif type(part).__module__.startswith(_LIBRARIES):
            yield part
            left += getattr(part, "__dict__", {}).values()


def can_be_sharded(source: Any) -> bool:
    """Return whether a data set is one of Hugging Face, which divides itself."""
    return type(source).__module__.partition(".")[0] == "datasets"


def _own_copy(source: Any) -> Any:
    """Return a copy, since the state belongs to the object and each stream needs its own; None if it cannot be copied."""
    try:
        return unpickled(pickled_by_value(source))
    except (PicklingError, TypeError):  # it holds an open file, a lock, a generator, ...
        return None


def _shard_of(source: Any, shard: int, shards: int) -> Any:
    if shards == 1:
        return source
    from datasets.distributed import split_dataset_by_node

    return split_dataset_by_node(source, rank=shard, world_size=shards)


def started(source: Any, epoch: int) -> Iterator[Any]:
    """Return an iterator over an epoch of a data set."""
    set_epoch: Callable[[int], None] | None = getattr(source, "set_epoch", None)
    if set_epoch is not None:
        set_epoch(epoch)
    return iter(source() if callable(source) and not hasattr(source, "__iter__") else source)

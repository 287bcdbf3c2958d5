"""The assignment of samples to workers: parts of a partition, as the order in which each worker reads its samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.errors import ConfigurationError, DataError
from chimera.data.dataset import RowData
from chimera.data.held_out import HeldOut
from chimera.data.order import GlobalOrder, Indices, Order, ShardOrder, check_order
from chimera.data.partition import Partitioner
from chimera.data.row_labels import class_labels

_Parts = dict[int, NDArray[Any]]


def orders(
    partitioner: Partitioner,
    dataset: RowData,
    world_size: int,
    batch_size: int,
    seed: int,
    *,
    since: int = 0,
    begin: int = 0,
    test_share: float | None = None,
) -> list[Order]:
    """Return the order of each worker, in rank order.

    ``since`` and ``begin`` are for data that is divided again during a run (see `GlobalOrder`). If each worker has its own
    samples, all samples are partitioned again, and only the step numbers continue. With ``test_share`` each worker has its own
    samples, and keeps this share of them for its evaluation (see `HeldOut`).

    Raises
    ------
    DataError : there are fewer samples than workers; or there are values where the partition needs classes, or no
        groups where it needs them; or no worker has two samples, of which it could keep one.
    ConfigurationError : the partitioner does not return one array of sample indices for each worker.
    """
    samples = len(dataset)
    check_order(samples, batch_size, seed)
    rng = np.random.default_rng([seed, *b"partition"])
    grouping = dataset.grouping
    parts = checked_parts(partitioner(_seen_by(partitioner, dataset), world_size, rng), world_size, samples)
    if getattr(partitioner, "global_order", False) and test_share is None:
        return [
            GlobalOrder(
                samples,
                world_size=world_size,
                rank=rank,
                batch_size=batch_size,
                seed=seed,
                since=since,
                begin=begin,
                grouping=grouping,
            )
            for rank in range(world_size)
        ]
    small = np.int32 if samples <= np.iinfo(np.int32).max else np.int64
    read, kept = {id(part): part.astype(small) for part in parts}, _Parts()  # replicas share one array
    if test_share is not None:
        read, kept = _divided(read, HeldOut(test_share, seed, samples, class_labels(dataset.known_labels)))
        samples = len(np.unique(np.concatenate(list(read.values()))))
    if grouping is not None:
        read = {key: np.sort(part) for key, part in read.items()}
    own = {key: None if grouping is None else grouping.of(part) for key, part in read.items()}
    steps = samples / (world_size * batch_size)
    return [
        ShardOrder(
            read[id(part)],
            batch_size=batch_size,
            seed=seed,
            rank=rank,
            steps_per_epoch=steps,
            kept=kept.get(id(part)),
            grouping=own[id(part)],
        )
        for rank, part in enumerate(parts)
    ]


def _divided(parts: _Parts, held_out: HeldOut) -> tuple[_Parts, _Parts]:
    """Return the samples of each part that workers read, and those that they keep for their evaluation."""
    divided = {key: held_out.divided(part) for key, part in parts.items()}
    read, kept = ({key: pair[place] for key, pair in divided.items()} for place in (0, 1))
    if not any(map(len, kept.values())):
        raise DataError("test_per_client: each worker has a single sample, so none can keep one: use fewer workers")
    return read, kept


def _seen_by(partitioner: Partitioner, dataset: RowData) -> NDArray[Any]:
    """Return the property of each sample that a partitioner uses, see `Partitioner`."""
    uses = getattr(partitioner, "uses", "labels")
    if uses is None:
        return np.empty(len(dataset))
    if uses == "labels":
        return dataset.partition_labels
    groups = dataset.partition_groups
    if groups is None:
        raise DataError(
            f"the partition needs the group of each sample, and the data {dataset.name!r} has no groups: set groups to a "
            'column, such as groups = "hospital" in [data], or to an array or a function'
        )
    return groups.indices


def checked_parts(parts: Sequence[Any], world_size: int, samples: int) -> list[Indices]:
    """Check the parts, since any user may write a partitioner, and return them as arrays.

    Parts that are the same object stay the same object.
    """
    if len(parts) != world_size:
        raise ConfigurationError(
            f"the partition makes {len(parts)} parts for {world_size} workers: it must return one array for each"
        )
    arrays = {id(part): np.asarray(part) for part in parts}
    for rank, part in enumerate(arrays[id(part)] for part in parts):
        if part.ndim != 1 or not part.size or part.dtype.kind not in "iu":
            raise ConfigurationError(
                f"the partition gives worker {rank} an array of {part.dtype}, shape {part.shape}: it must be a one-dimensional "
                "array of integers with at least one sample"
            )
        if part.min() < 0 or part.max() >= samples:
            raise ConfigurationError(
                f"the partition gives worker {rank} samples from {part.min()} to {part.max()}: 0 to {samples - 1} are allowed"
            )
    return [arrays[id(part)] for part in parts]

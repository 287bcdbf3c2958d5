"""What each worker holds of the training data: numbers of samples, of samples of each label, and groups."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from chimera.core.counted import counted

MAX_LABELS = 20
"""Labels that are counted one by one; if there are more, the most frequent ones."""

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]


class WorkerCount(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one worker holds.

    Attributes
    ----------
    worker : name of the worker.
    samples : number of its samples, those for its evaluation included.
    test : number of samples that it keeps for its evaluation; None if it is evaluated on all.
    classes : number of different labels of its samples; None if labels are not known.
    counts : number of samples of each label that `WorkerCounts` lists, and of all others if there are more.
    groups, group_names : number of its groups, and the names of the first ones; None if the data has no groups.
    """

    worker: str
    samples: Count
    test: Count | None = None
    classes: Count | None = None
    counts: tuple[Count, ...] = ()
    groups: Count | None = None
    group_names: tuple[str, ...] = ()


class WorkerCounts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the workers hold at the start of a run; ``data.json`` in the folder of a run.

    Attributes
    ----------
    workers : one for each worker, in rank order.
    labels : the names of the counted labels: all, or the `MAX_LABELS` most frequent ones, in the order of their indices.
    more_labels : number of labels that are counted together because they are less frequent.
    skew : mean over the workers of the total variation distance between the labels of a worker and those of all
        samples: 0 if all workers have the same shares of labels, near 1 if each has other, rare labels. None if labels
        are not known.
    """

    workers: tuple[WorkerCount, ...]
    labels: tuple[str, ...] = ()
    more_labels: Count = 0
    skew: float | None = None

    def __post_init__(self) -> None:
        columns = len(self.labels) + bool(self.more_labels)
        if any(len(worker.counts) != columns for worker in self.workers):
            raise ValueError(f"each worker must have {columns} counts, one for each label")

    @property
    def sizes(self) -> str:
        """The number of workers, and of samples of the smallest and the largest one, as text."""
        found = sorted(each.samples for each in self.workers)
        workers = counted(len(found), "worker")
        if found[0] == found[-1]:
            return f"{workers}: {counted(found[0], 'sample')} each"
        return f"{workers}: {found[0]:,} to {found[-1]:,} samples each, median {found[len(found) // 2]:,}"

    @property
    def columns(self) -> list[str]:
        """What is counted in each place of `WorkerCount.counts`: a label, or all other labels together."""
        return [*self.labels, *([counted(self.more_labels, "other")] if self.more_labels else [])]

"""Reading of batches by step: in the worker, or ahead of it in processes of its own."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from chimera.core.batch import Batch
from chimera.core.errors import ConfigurationError, DataError
from chimera.core.processes import end_with_parent
from chimera.core.stop_signals import STOP_SIGNALS, ignore_stop_signals, preemptions
from chimera.core.validation_message import validation_message
from chimera.data.iterable import IterableSamples
from chimera.data.order import Order
from chimera.data.samples import SampleDataset


@dataclass(frozen=True)
class Loading:
    """Settings for reading data sets whose samples are read one by one. The batches are the same for all values.

    Attributes
    ----------
    workers : number of reading processes of each worker; 0 (default): the worker reads itself.
    ahead : batches that each reading process prepares ahead; default 4.
    """

    workers: int = 0
    ahead: int = 4

    def __post_init__(self) -> None:
        if self.workers < 0 or self.ahead < 1:
            raise ConfigurationError(
                f"loader: workers must be at least 0 and ahead at least 1, not {self.workers} and {self.ahead}"
            )

    @classmethod
    def of(cls, given: Mapping[str, Any] | Loading | None) -> Loading:
        """Return the settings of a table.

        Raises
        ------
        ConfigurationError : it is no table, or an option is unknown or cannot be used.
        """
        if isinstance(given, Loading):
            return given
        if not isinstance(given, Mapping | None):
            raise ConfigurationError(f"loader is a table such as {{workers = 2, ahead = 4}}, not {given!r}")
        table = dict(given or {})
        if unknown := set(table) - {"workers", "ahead"}:
            raise ConfigurationError(f"loader has no option {min(unknown)!r}; its options: workers, ahead")
        try:
            return msgspec.convert(table, cls)
        except msgspec.ValidationError as error:
            raise ConfigurationError(f"loader: {validation_message(error, cls)}") from error


class Reader:
    """Reads the batch of each step of an order.

    Random numbers of reading depend on seed, rank and step only, so it does not matter where a batch is read.

    Parameters
    ----------
    dataset : a data set with a method ``take(indices, key)``.
    seed : seed of the run, at least 0.
    loading : reading ahead; used for a `SampleDataset` only.
    """

    def __init__(self, dataset: Any, seed: int, loading: Loading) -> None:
        self._dataset, self._seed, self._loading = dataset, seed, loading
        self.reads_ahead = loading.workers > 0 and isinstance(dataset, SampleDataset)
        self._order: Order | None = None
        self._next = -1
        self._batches: Iterator[Batch] = iter(())

    def batch(self, order: Order, rank: int, step: int) -> Batch:
        """Return the batch of a step. With reading ahead, steps should come in sequence: another step starts again.

        Raises
        ------
        DataError : see `SampleDataset.take`; or a reading process ended.
        """
        if not self.reads_ahead:
            return self._dataset.take(order.batch(step), (self._seed, rank, step))
        if order is not self._order or step != self._next:
            self._order, self._next = order, step
            self._batches = self._started(order, rank, step)
        self._next += 1
        try:
            return next(self._batches)
        except RuntimeError as error:
            self._order = None
            if "DataLoader worker" in str(error) and "exited unexpectedly" in str(error):
                raise DataError(
                    f"a reading process of worker {rank} ended unexpectedly, perhaps for lack of memory: lower loader.workers"
                ) from error
            raise

    def read(self, order: Order, rank: int, step: int) -> Batch:
        """Return the batch of a step, read now by this process."""
        return self._dataset.take(order.batch(step), (self._seed, rank, step))

    def place(self, rank: int) -> bytes:
        """Return the place of a rank in data that is read in sequence; empty if it has no state that could be restored."""
        return self._dataset.place((self._seed, rank)) if isinstance(self._dataset, IterableSamples) else b""

    def go_to(self, rank: int, place: bytes) -> None:
        """Continue at a place that `place` returned.

        Raises
        ------
        DataError : the place is damaged.
        """
        if isinstance(self._dataset, IterableSamples):
            self._dataset.go_to((self._seed, rank), place)

    def _started(self, order: Order, rank: int, first: int) -> Iterator[Batch]:
        from torch.utils.data import DataLoader

        loader: Any = DataLoader(
            _Steps(self._dataset, order, rank, self._seed),  # type: ignore[arg-type]
            batch_size=None,
            sampler=range(first, sys.maxsize),
            num_workers=self._loading.workers,
            prefetch_factor=self._loading.ahead,
            multiprocessing_context="fork",
            worker_init_fn=partial(_start, os.getpid(), [] if preemptions() else STOP_SIGNALS),
        )
        return iter(loader)


@dataclass(frozen=True)
class _Steps:
    """A data set whose item ``step`` is the batch of that step."""

    dataset: SampleDataset
    order: Order
    rank: int
    seed: int

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, step: int) -> Batch:
        return self.dataset.take(self.order.batch(step), (self.seed, self.rank, step))


def _start(parent: int, ignored: Collection[signal.Signals], _: int) -> None:
    """Make this reading process end with its worker, and only then. Elsewhere than on Linux, torch checks that every 5 s.

    The process leaves its process group, which a terminal or a scheduler may signal, and ignores the signals that its
    worker ignores.
    """
    end_with_parent(parent)
    os.setsid()
    ignore_stop_signals(ignored)

"""The collectives of a hook: means of vectors, and messages of different lengths from each process to all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chimera.core.parameters import Flat

Bytes = NDArray[np.uint8]
_PREFIX = 8  # the length of a message precedes it
_MIN_MESSAGE_BYTES = 64
_SMALL = 1 << 16  # bytes
_ALIGNED = 8  # bytes; each message begins at a multiple of this


class Collectives:
    """A process group of its own, so that its collectives are in the same order in all processes.

    Its messages are in the memory of the host, so its backend is gloo.

    Parameters
    ----------
    process_group : the group whose processes participate; None: all processes.

    Attributes
    ----------
    rank, size : number of this process in the group, and number of processes.
    bytes_sent : bytes that this process has sent, as the ring algorithms of gloo send them.
    """

    def __init__(self, process_group: Any | None = None) -> None:
        import torch.distributed as dist

        self._dist = dist
        ranks = None if process_group is None else dist.get_process_group_ranks(process_group)
        self._group: Any = dist.new_group(ranks, backend="gloo", use_local_synchronization=ranks is not None)
        self.rank, self.size = dist.get_rank(self._group), dist.get_world_size(self._group)
        self._ranks = dist.get_process_group_ranks(self._group)
        self._memory: dict[str, Bytes] = {}  # for messages: new memory takes longer than a copy
        self.bytes_sent = 0

    def mean(self, vector: Flat) -> None:
        """Replace a contiguous vector of float32 by its mean over the processes."""
        import torch

        with np.errstate(over="ignore", invalid="ignore"):
            np.divide(vector, np.float32(self.size), out=vector)  # first, as DDP does: the sum overflows later
        self._dist.all_reduce(torch.from_numpy(vector), group=self._group)
        self.bytes_sent += 2 * vector.nbytes * (self.size - 1) // self.size

    def gather(self, message: Sequence[Bytes], slot: int) -> tuple[list[Bytes], int]:
        """Return the messages of all processes by rank, and the ``slot`` for the next messages of this kind.

        The messages are in memory of this object, and are valid until the next call.

        Parameters
        ----------
        message : arrays of bytes, which are concatenated.
        slot : the number of bytes that all processes send at first. One collective is enough if no message is longer.
        """
        slot = max(slot, _MIN_MESSAGE_BYTES)
        slot += -slot % _ALIGNED
        length = sum(map(len, message))
        own = self._reused("own", _PREFIX + max(slot, length))
        own[:_PREFIX].view(np.int64)[0] = length
        np.concatenate(message, out=own[_PREFIX : _PREFIX + length])
        own[_PREFIX + length :] = 0  # other processes must not receive earlier content of this memory
        begins = self._all(own[: _PREFIX + slot])
        lengths = [int(each[:_PREFIX].view(np.int64)[0]) for each in begins]
        longest = max(lengths)
        found = [each[_PREFIX:] for each in begins]
        if longest > slot:
            rest = np.zeros(longest - slot, np.uint8)
            rest[: max(length - slot, 0)] = own[_PREFIX + slot : _PREFIX + max(slot, length)]
            found = [each.copy() for each in found]
            found = [np.concatenate(parts) for parts in zip(found, self._all(rest), strict=True)]
        return [each[:size] for each, size in zip(found, lengths, strict=True)], longest + longest // 32

    def _all(self, own: Bytes) -> list[Bytes]:
        """Return the arrays of all processes, of equal length. Pairs exchange them, with one delay of the network."""
        found = self._reused("received", (self.size - 1) * len(own)).reshape(self.size - 1, len(own))
        (self._at_once if len(own) <= _SMALL else self._both_ways)(own, found)
        self.bytes_sent += found.size
        arrays = list(found)
        arrays.insert(self.rank, own)
        return arrays

    def _at_once(self, own: Bytes, found: Bytes) -> None:
        """Exchange small arrays in one collective.

        Single sends and receives of gloo take some milliseconds if other processes compete for the cores.
        """
        import torch

        if len(found):
            splits = [0 if rank == self.rank else len(own) for rank in range(self.size)]
            given = torch.from_numpy(own if len(found) == 1 else np.tile(own, len(found)))
            self._dist.all_to_all_single(torch.from_numpy(found.reshape(-1)), given, splits, splits, group=self._group)

    def _both_ways(self, own: Bytes, found: Bytes) -> None:
        """Exchange large arrays, in both directions at the same time.

        The collective takes longer over a slow link, probably because it sends before it reports that it is ready to receive.
        """
        import torch

        others = [rank for rank in range(self.size) if rank != self.rank]
        places = {rank: torch.from_numpy(each) for rank, each in zip(others, found, strict=True)}
        mine = torch.from_numpy(own)
        works: list[Any] = []
        for away in range(1, self.size):
            before, after = (self.rank - away) % self.size, (self.rank + away) % self.size
            works.append(self._dist.irecv(places[before], self._ranks[before], group=self._group))
            works.append(self._dist.isend(mine, self._ranks[after], group=self._group))
        for work in works:
            work.wait()

    def _reused(self, name: str, size: int) -> Bytes:
        """Return uninitialised memory for this many bytes. Buckets share it, since their exchanges follow one another."""
        found = self._memory.get(name)
        if found is None or len(found) < size:
            found = self._memory[name] = np.empty(size, np.uint8)
        return found[:size]

"""What a function sees of the workers around it."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from chimera.core.errors import ConfigurationError
from chimera.remote.wish import Wish

Operation: TypeAlias = Literal["sum", "mean", "min", "max"]
_UFUNCS: dict[str, np.ufunc] = {"sum": np.add, "mean": np.add, "min": np.minimum, "max": np.maximum}


class Worker:
    """One of the workers that run a function: the function's first argument, like a communicator of MPI.

    Messages are any values that can be pickled; what arrives never changes, so arrays are read-only: copy one to write to it.
    Collectives are to be called by all workers, in the same order. All methods belong to the thread of the function.

    Attributes
    ----------
    rank : this worker's number, from 0.
    world_size : how many workers there are.
    """

    def __init__(self, rank: int, world_size: int, ask: Callable[[Wish, Any], Any]) -> None:
        self.rank, self.world_size, self._ask = rank, world_size, ask

    def send(self, to: int, value: Any) -> None:
        """Send a value to worker ``to``. Nobody has to wait for it: this returns once the message is on its way."""
        self._ask(Wish("send", self._peer(to)), value)

    def recv(self, sender: int) -> Any:
        """Return the next value that worker ``sender`` has sent here, in the order in which it was sent; wait for it."""
        return self._ask(Wish("receive", self._peer(sender)), None)

    def all_reduce(self, array: Any, op: Operation = "sum") -> Any:
        """Return the sum, mean, minimum or maximum over all workers, element by element.

        Parameters
        ----------
        array : a number, or an array of one shape and type on all workers; it is not written to.

        Returns
        -------
        a new array, or a NumPy number for a number. It was added in rank order, so all workers get the same bits. The mean of
        whole numbers is float64.
        """
        if op not in get_args(Operation):
            raise ConfigurationError(f"all_reduce has no op {op!r}; it has {', '.join(get_args(Operation))}")
        own = np.asarray(array)
        if own.dtype.kind not in "iufc":
            raise ConfigurationError(f"all_reduce takes numbers and arrays of numbers, not {own.dtype}")
        what = f"all_reduce {op} of {own.dtype} {own.shape}"
        if own.dtype == np.float32 and op in ("sum", "mean"):  # what the engine's groups do, at their speed
            flat = self._ask(Wish("reduce", what=what), (own.reshape(-1).copy(), op))
            return flat.reshape(own.shape)[()]
        with np.errstate(over="ignore", invalid="ignore"):  # a sum that is not finite is no error here, as in groups
            total = reduce(_UFUNCS[op], self._ask(Wish("gather", what=what), own))
            return (total / self.world_size if op == "mean" else np.array(total))[()]

    def all_gather(self, value: Any) -> list[Any]:
        """Return the values that all workers give, in rank order."""
        return list(self._ask(Wish("gather", what="all_gather"), value))

    def broadcast(self, value: Any = None, root: int = 0) -> Any:
        """Return the value that worker ``root`` gives; what others give is not looked at."""
        wish = Wish("broadcast", self._peer(root), f"broadcast from worker {root}")
        return self._ask(wish, value if self.rank == root else None)

    def barrier(self) -> None:
        """Return when all workers have called this."""
        self._ask(Wish("barrier", what="barrier"), None)

    def _peer(self, rank: int) -> int:
        if not 0 <= rank < self.world_size:
            raise ConfigurationError(f"there is no worker {rank!r}: ranks are 0 to {self.world_size - 1}")
        return int(rank)

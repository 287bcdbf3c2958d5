"""The communicator that a remote function receives."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from chimera.core.errors import ConfigurationError
from chimera.remote.request import Request

Operation: TypeAlias = Literal["sum", "mean", "min", "max"]
_UFUNCS: dict[str, np.ufunc] = {"sum": np.add, "mean": np.add, "min": np.minimum, "max": np.maximum}


class Worker:
    """The first argument of a remote function, like an MPI communicator.

    Messages are any values that can be pickled. Received arrays are read-only; copy one to write to it. All workers must call
    the same collectives in the same order. Only the thread of the function may call the methods.

    Attributes
    ----------
    rank : this worker's number, from 0.
    world_size : number of workers.
    """

    def __init__(self, rank: int, world_size: int, request: Callable[[Request, Any], Any]) -> None:
        self.rank, self.world_size, self._request = rank, world_size, request

    def send(self, to: int, value: Any) -> None:
        """Send a value to worker ``to``. The call does not wait for the receiver."""
        self._request(Request("send", self._peer(to)), value)

    def recv(self, sender: int) -> Any:
        """Wait for the next value from worker ``sender``, in the order of sending, and return it."""
        return self._request(Request("receive", self._peer(sender)), None)

    def all_reduce(self, array: Any, op: Operation = "sum") -> Any:
        """Return the elementwise sum, mean, minimum or maximum over all workers.

        Parameters
        ----------
        array : a number, or an array with the same shape and type on all workers; it is not modified.
        op : ``sum``, ``mean``, ``min`` or ``max``.

        Returns
        -------
        a new array, or a NumPy number for a number. The reduction is in rank order, so all workers get the same bits. The mean
        of whole numbers is float64.

        Raises
        ------
        ConfigurationError : ``op`` is unknown, or ``array`` is not numeric.
        """
        if op not in get_args(Operation):
            raise ConfigurationError(f"all_reduce has no op {op!r}; it has {', '.join(get_args(Operation))}")
        own = np.asarray(array)
        if own.dtype.kind not in "iufc":
            raise ConfigurationError(f"all_reduce takes numbers and arrays of numbers, not {own.dtype}")
        what = f"all_reduce {op} of {own.dtype} {own.shape}"
        if own.dtype == np.float32 and op in ("sum", "mean"):  # the engine's groups do these faster
            flat = self._request(Request("reduce", what=what), (own.reshape(-1).copy(), op))
            return flat.reshape(own.shape)[()]
        with np.errstate(over="ignore", invalid="ignore"):  # a sum that is not finite is no error, as in groups
            total = reduce(_UFUNCS[op], self._request(Request("gather", what=what), own))
            return (total / self.world_size if op == "mean" else np.array(total))[()]

    def all_gather(self, value: Any) -> list[Any]:
        """Return the values of all workers, in rank order."""
        return list(self._request(Request("gather", what="all_gather"), value))

    def broadcast(self, value: Any = None, root: int = 0) -> Any:
        """Return the value of worker ``root``; the values of other workers are ignored."""
        request = Request("broadcast", self._peer(root), f"broadcast from worker {root}")
        return self._request(request, value if self.rank == root else None)

    def barrier(self) -> None:
        """Wait until all workers have called this."""
        self._request(Request("barrier", what="barrier"), None)

    def _peer(self, rank: int) -> int:
        if not 0 <= rank < self.world_size:
            raise ConfigurationError(f"there is no worker {rank!r}: ranks are 0 to {self.world_size - 1}")
        return int(rank)

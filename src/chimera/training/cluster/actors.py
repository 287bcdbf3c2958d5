"""The factory of the actors of a run, as a cluster sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from chimera.core.errors import ConfigurationError
from chimera.core.parameters import Flat
from chimera.strategies.cluster import Announced
from chimera.training.optimizers.schedule import Schedule


class Actors(Protocol):
    """A factory of the actors of a run.

    Attributes
    ----------
    addressed, by_rows : how servers send weights, see `TrainingCluster.addressed`.
    private : whether the run is private.
    schedules : schedules of the optimizers of new actors, of which the driver reduces those that are plateaus.
    bounds : indices of the first layers of all stages but the first, where the model is split by measured cost. Measured
        costs vary, so a resumed run takes these from the checkpoint.
    """

    addressed: bool
    by_rows: bool
    private: bool = False
    schedules: Sequence[Schedule] = ()
    bounds: Sequence[int] = ()

    def reserve_workers(self, count: int, timeout_s: float | None = None) -> None:
        """See `Engine.reserve`."""

    def worker(self, rank: int, order: Any) -> Any:
        """Start the worker of a rank."""

    def announce(self, work: Mapping[int, Announced]) -> None:  # noqa: ARG002 - most workers take steps alone
        """Announce the steps that workers will take, see `TrainingCluster.announce`, by rank; by default do nothing."""
        return

    def servers(self, shards: int) -> list[Any]:
        """Start all servers."""

    def server(self, index: int, shards: int) -> Any:
        """Start one server with the initial parameters."""

    def edge(self, number: int) -> Any:
        """Start one edge server."""
        raise ConfigurationError(f"there is no edge server {number} where the model is cut, or nodes have their own")

    def joined(self, pieces: Sequence[Flat], out: Flat | None = None) -> Flat:
        """Return the parameters of the whole model, shape (P,), from its pieces; by default, concatenate them.

        Without ``out`` the result is read-only, or a single piece itself, so that a checkpoint need not copy it.
        """
        if out is None and len(pieces) == 1:
            return pieces[0]
        whole = np.concatenate(pieces, out=out)
        whole.flags.writeable = out is not None
        return whole

    def joined_buffers(self, pieces: Sequence[Flat]) -> Flat:
        """Return the buffers of the whole model from those of its parts."""
        return np.concatenate(pieces)

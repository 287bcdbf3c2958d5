"""The library of MPI. Importing this module initialises it, for calls by several threads, of which one calls at a time."""

from __future__ import annotations

import mpi4py

mpi4py.rc.thread_level = "serialized"

from mpi4py import MPI  # noqa: E402 - it initialises MPI

from chimera.core.processes import before_exit  # noqa: E402

__all__ = ["MPI"]

before_exit(lambda: None if MPI.Is_finalized() else MPI.Finalize())  # mpi4py does it at the end of the interpreter

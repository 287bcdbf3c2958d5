"""The MPI engine: ranks of a job that mpiexec or srun has started.

Progress: each rank has a thread, its messenger, that receives messages and sends values while the actors of the rank compute.
The messenger and the actors' threads call MPI one at a time, and only its calls that return at once, so MPI_THREAD_SERIALIZED
is enough. A waiting thread sleeps on a word of memory that the ranks of a machine share, and the sender of a message wakes it.
Between machines, the thread polls with growing pauses (decisions/0068).
"""

from chimera.engines.mpi.engine import Mpi

__all__ = ["Mpi"]

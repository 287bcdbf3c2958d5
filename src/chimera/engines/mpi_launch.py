"""The rank of a process in an MPI job, known at the start of its program: rank 0 drives, the others host actors.

The variables of the launcher show the rank, so that commands need no library of MPI, and import none.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from chimera.core.errors import ConfigurationError

_VARIABLES = (
    ("PMI_RANK", "PMI_SIZE"),  # MPICH and its variants; srun --mpi=pmi2
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),  # srun --mpi=pmix; the second is set in a step of srun only
)
COMMAND = "mpiexec -n 5 chimera train x.toml --engine mpi"


class Launch(NamedTuple):
    """The data that the launcher gives to a process: its rank, and the number of ranks."""

    rank: int
    size: int


def launch_of(variables: Mapping[str, str] = os.environ) -> Launch:
    """Return the launch of this process; a process without a launcher is rank 0 of 1."""
    for rank, size in _VARIABLES:
        if variables.get(rank, "").isdigit() and variables.get(size, "").isdigit():
            return Launch(int(variables[rank]), int(variables[size]))
    return Launch(0, 1)


def refuse_torchrun(variables: Mapping[str, str] = os.environ) -> None:
    """End this process if torchrun started several: each would run the whole experiment. Rank 0 reports the error.

    Raises
    ------
    ConfigurationError : this is rank 0 of several processes.
    SystemExit : this is another rank.
    """
    if "TORCHELASTIC_RUN_ID" not in variables or variables.get("WORLD_SIZE", "1") == "1":
        return
    if variables.get("RANK", "0") != "0":
        raise SystemExit(2)
    raise ConfigurationError(
        f"torchrun started {variables['WORLD_SIZE']} processes, but Chimera starts its workers itself: "
        f"type the command without torchrun for this machine, or '{COMMAND}' for ranks of MPI"
    )


def needs_ranks() -> ConfigurationError:
    """Return the error of a driver without other ranks."""
    return ConfigurationError(
        f"the engine mpi needs ranks for its actors: type '{COMMAND}', or set its option driver_works = true"
    )


def is_mpi(engine: Any) -> bool:
    """Return whether an engine, as users name it, is this one."""
    return (engine.get("name") if isinstance(engine, Mapping) else engine) == "mpi"


def enter(engine: Any, preload: Sequence[str] = ()) -> None:
    """Join the job if the engine is this one; on another rank than 0, host actors until rank 0 exits, and end this process.

    Once rank 0 has joined, the other ranks end with it, also if it fails before it creates the engine.

    Parameters
    ----------
    preload : modules that the other ranks import while rank 0 reads the experiment.
    """
    launch = launch_of()
    if launch.size == 1 or not is_mpi(engine):
        return
    from chimera.engines.mpi import job

    if launch.rank == 0:
        job.lead()
        return
    job.host(preload)
    raise SystemExit(0)

"""The entry of the program ``chimera``. A rank of an MPI job that only hosts actors imports no commands."""

from __future__ import annotations

import atexit
import gc
import sys

from chimera.cli.ranks import enter_job
from chimera.core.processes import end_process
from chimera.engines.mpi_launch import launch_of


def main() -> None:
    """Run the command line of this process."""
    if launch_of().rank > 0:
        atexit.register(gc.freeze)  # before it exits, the interpreter would search all objects for cycles
        try:
            enter_job(sys.argv[1:])
        except SystemExit as end:
            end_process(int(end.code or 0))
    from chimera.cli.main import main as run_command

    run_command()

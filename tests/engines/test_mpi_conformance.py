"""The conformance kits on the engine mpi: pytest is rank 0 of a job."""

from __future__ import annotations

import pytest

import mpi_kit

pytestmark = pytest.mark.long

LIMIT_S = 600.0
FAMILIES = ["parameter-server", "all-reduce", "fed-avg", "d-psgd", "async-parameter-server", "pipeline-parallel"]
"""A strategy of each kind of messages: with servers, collectives, local steps, peers, without rounds, and stages."""


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
@pytest.mark.parametrize("name", ["mpich", "openmpi"])
def test_the_engine_keeps_its_promises(name: str, ranks: int) -> None:
    mpi_kit.run_pytest(mpi_kit.library(name), ranks, ["-q", "-m", "", "tests/conformance"], LIMIT_S)


def test_the_engine_keeps_its_promises_on_two_machines() -> None:
    mpi_kit.run_pytest(
        mpi_kit.library("mpich"), 5, ["-q", "-m", "", "tests/conformance"], LIMIT_S, {mpi_kit.MACHINES: "2"}
    )


@pytest.mark.parametrize("strategy", FAMILIES)
def test_strategies_keep_their_promises(strategy: str) -> None:
    kit = ["-p", "chimera.testing", "--pyargs", "chimera.testing", "--strategy", strategy, "--engines", "mpi"]
    mpi_kit.run_pytest(mpi_kit.library("mpich"), 4, ["-q", "-m", "", "-k", "mpi", *kit], LIMIT_S)

"""Data parallelism and word vectors on ranks of MPI, on the local engine, and with PyTorch DDP over gloo.

The networks are those of `data_parallel.py`, and the text is that of `embedding_learners.py`. There are two workers or learners
of one thread each; the driver is one more rank, and so is a server. The variants alternate. The table shows medians. Run it on
an idle machine, with the `mpiexec` of the library that mpi4py loads::

    python benchmarks/mpi.py [--turns 3] [--parts small large cbow] [--mpiexec PROGRAM]
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import data_parallel

STRATEGIES = {"all-reduce": 3, "parameter-server": 4}  # ranks: the driver, two workers, and a server
CBOW, SETTING, EPOCHS = "cbow", "64 shared", 3


def cbow(engine: str) -> float:
    """Return words a second of two learners."""
    import embedding_learners
    from chimera.embeddings import Recipe

    recipe = Recipe(
        paths=[embedding_learners.WIKI],
        learners=2,
        output="negative-sampling",
        epochs=EPOCHS,
        engine=engine,
        data={"vocabulary_size": embedding_learners.WORDS, "sample": embedding_learners.SAMPLE, "bounds": "lines"},
        **embedding_learners.SETTINGS[SETTING],
    )
    seldom = [f"train.{what}_every=1000000" for what in ("evaluate", "log", "checkpoint")]
    with tempfile.TemporaryDirectory() as folder:
        run = recipe.experiment().with_settings(seldom).trainer(out=Path(folder) / "run").fit()
    return run.cost.samples / run.cost.seconds


def measure(part: str, variant: str, engine: str) -> float:
    """Run in this process, which is rank 0 if the engine is mpi; return samples or words per second."""
    return cbow(engine) if part == CBOW else data_parallel.measure_chimera(variant, part, engine)


def in_process(launcher: list[str], part: str, variant: str, engine: str) -> float:
    """Measure in processes of their own."""
    command = [*launcher, sys.executable, __file__, "--job", part, variant, engine]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    output = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    return float(output.splitlines()[-1])


def variants(part: str, mpiexec: list[str]) -> dict[str, Callable[[], float]]:
    """Return the variants to measure, by title; each mpi variant follows the local one."""
    found: dict[str, Callable[[], float]] = {}
    strategies = {CBOW: 3} if part == CBOW else STRATEGIES
    if part != CBOW:
        found["PyTorch DDP, gloo"] = lambda: data_parallel.measure_plain("ddp", part)
    for variant, ranks in strategies.items():
        launcher = [*mpiexec, "-n", str(ranks)]
        found[f"{variant}, local"] = lambda v=variant: in_process([], part, v, "local")
        found[f"{variant}, mpi"] = lambda v=variant, each=launcher: in_process(each, part, v, "mpi")
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--parts", nargs="+", choices=[*data_parallel.NETWORKS, CBOW], default=["small", "large", CBOW])
    parser.add_argument("--mpiexec", default=str(Path(sys.executable).with_name("mpiexec")))
    parser.add_argument("--job", nargs=3, metavar=("PART", "VARIANT", "ENGINE"))
    args = parser.parse_args()
    if args.job:
        print(measure(*args.job))
        return
    for part in args.parts:
        measures = variants(part, shlex.split(args.mpiexec))
        figures: dict[str, list[float]] = {title: [] for title in measures}
        for _ in range(args.turns):
            for title, each in measures.items():
                figures[title].append(each())
        print(f"\n{part}\n{'':28}{'per second':>12}{'of local':>10}{'spread':>9}")
        for title, values in figures.items():
            value = statistics.median(values)
            local = statistics.median(figures.get(title.replace(", mpi", ", local"), values))
            ratio = f"{value / local:.2f}" if title.endswith(", mpi") else ""
            print(f"{title:28}{value:12,.0f}{ratio:>10}{(max(values) - min(values)) / value:9.0%}")


if __name__ == "__main__":
    main()

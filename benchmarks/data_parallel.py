"""Data parallelism on this machine: Chimera's local engine, PyTorch DDP, and no communication at all.

Each variant trains the same network on the same random data with SGD, batch 64 per worker, two workers of one thread each.
The variants alternate. In ``lockstep``, the independent processes wait for each other in each step and send nothing: the least
cost of synchronous training on this machine. The table shows medians over the repetitions, as samples per second of both
workers together, and ratios to two independent processes (the upper limit) and to DDP over gloo. Run it on an idle machine::

    python benchmarks/data_parallel.py [--turns 5] [--network small|large|both] [--variants NAME ...]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WORKERS, BATCH, SAMPLES = 2, 64, 6400
NETWORKS = {"small": (784, 128, 128, 10), "large": (784, 2048, 2048, 2048, 10)}
PLAIN = "independent", "lockstep", "ddp"
STEPS = {"small": (600, 3000), "large": (10, 60)}  # to warm up, and to measure
VARIANTS = {
    "independent": "two independent processes",
    "lockstep": "the same, waiting for each other",
    "ddp": "PyTorch DDP, gloo",
    "all-reduce": "Chimera AllReduce",
    "parameter-server": "Chimera ParameterServer",
    "parameter-server-2": "Chimera ParameterServer, 2 shards",
    "with-workers": "the same, 1 shard with a worker",
    "with-workers-2": "the same, 2 shards with workers",
}
SERVERS = {
    "parameter-server-2": {"shards": 2},
    "with-workers": {"placement": "with-workers"},
    "with-workers-2": {"shards": 2, "placement": "with-workers"},
}


def build(network: str):
    import torch

    torch.manual_seed(0)
    sizes = NETWORKS[network]
    layers = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.Tanh()]
    return torch.nn.Sequential(*layers[:-1])


def small():
    """Return the small network; workers can import this factory."""
    return build("small")


def large():
    """Return the large network."""
    return build("large")


def arrays():
    import numpy as np

    rng = np.random.default_rng(0)
    return rng.random((SAMPLES, 784), np.float32), rng.integers(0, 10, SAMPLES)


def plain_worker(variant: str, network: str, rank: int, port: int, counters: str) -> None:
    """Train in a plain loop, alone, in lockstep or under DDP, and print samples per second; ``counters`` is a file of steps."""
    import numpy as np
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORKERS)
    inputs, targets = (torch.from_numpy(array) for array in arrays())
    model = build(network)
    if variant == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    counts = np.memmap(counters, np.int64, shape=WORKERS)
    order = np.random.default_rng(rank).permutation(SAMPLES)
    warm_up, steps = STEPS[network]
    for step in range(warm_up + steps):
        if step == warm_up:
            dist.barrier()
            began = time.perf_counter()
        rows = torch.from_numpy(order[step * BATCH % SAMPLES :][:BATCH])
        loss = torch.nn.functional.cross_entropy(model(inputs[rows]), targets[rows])
        optimizer.zero_grad()
        loss.backward()
        if variant == "lockstep":
            counts[rank] = step
            while counts.min() < step:
                pass
        optimizer.step()
    seconds = time.perf_counter() - began
    dist.destroy_process_group()
    print(json.dumps(steps * BATCH / seconds))


def measure_plain(variant: str, network: str) -> float:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with tempfile.NamedTemporaryFile() as counters:
        counters.truncate(8 * WORKERS)
        options = {"worker": variant, "network": network, "port": str(port), "counters": counters.name}
        command = [sys.executable, __file__, *(f"--{key}={value}" for key, value in options.items()), "--rank"]
        processes = [
            subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True, env=environment)
            for rank in range(WORKERS)
        ]
        return sum(json.loads(process.communicate()[0].splitlines()[-1]) for process in processes)


def measure_chimera(variant: str, network: str, engine: str = "local", rounds: tuple[int, int] | None = None) -> float:
    """Return samples per second; ``rounds`` are the numbers of rounds to warm up and to measure."""
    from chimera.training.trainer import Trainer

    warm_up, steps = rounds or STEPS[network]
    strategy = {"name": "parameter-server", **SERVERS[variant]} if variant in SERVERS else variant
    data = arrays()
    with tempfile.TemporaryDirectory() as folder:
        run = Trainer(
            f"{__file__}:{network}",
            (data, tuple(array[:BATCH] for array in data)),
            strategy=strategy,
            engine=engine,
            workers=WORKERS,
            batch_size=BATCH,
            optimizer={"name": "sgd", "lr": 0.01},
            rounds=warm_up + steps,
            log_every=warm_up,
            evaluate_every=10**9,
            out=Path(folder) / "run",
        ).fit()
    first, last = run.rows[0], run.rows[-1]
    return (last["samples"] - first["samples"]) / (last["seconds"] - first["seconds"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--network", choices=[*NETWORKS, "both"], default="both")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), help="default: all")
    parser.add_argument("--worker")
    parser.add_argument("--rank", type=int)
    parser.add_argument("--port", type=int)
    parser.add_argument("--counters")
    args = parser.parse_args()
    if args.worker:
        plain_worker(args.worker, args.network, args.rank, args.port, args.counters)
        return
    import numpy
    import torch

    import chimera

    versions = f"chimera {chimera.__version__}, torch {torch.__version__}, numpy {numpy.__version__}"
    print(
        f"Python {platform.python_version()}, {versions}, {os.cpu_count()} processors, medians of {args.turns} repetitions"
    )
    for network in NETWORKS if args.network == "both" else [args.network]:
        found = {variant: [] for variant in args.variants}
        for _ in range(args.turns):
            for variant in args.variants:
                measure = measure_plain if variant in PLAIN else measure_chimera
                found[variant].append(measure(variant, network))
        medians = {variant: statistics.median(values) for variant, values in found.items()}
        print(f"\n{network}: {'-'.join(map(str, NETWORKS[network]))}, batch {BATCH}, {WORKERS} workers of one thread")
        print(f"{'':36}{'samples/s':>12}{'of independent':>16}{'of DDP':>9}{'spread':>9}")
        for variant, value in medians.items():
            spread = (max(found[variant]) - min(found[variant])) / value
            ratios = [f"{value / medians[other]:.2f}" if other in medians else "-" for other in ("independent", "ddp")]
            print(f"{VARIANTS[variant]:36}{value:12,.0f}{ratios[0]:>16}{ratios[1]:>9}{spread:9.0%}")


if __name__ == "__main__":
    main()

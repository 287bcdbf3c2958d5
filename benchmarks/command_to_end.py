"""Time from a command to its end: ``chimera train examples/mnist.toml`` and a plain PyTorch script of the same training.

The script has one thread, and the same network, optimizer, epochs and data. Its time includes its start and an evaluation after
each epoch. It uses the batch of one worker, or the merged batch of both, which takes as many steps as the command. The variants
alternate. The table shows medians of seconds, of processor seconds of all processes of a variant (other load changes them
less), ratios to the script, and spreads. The files of MNIST are in ``$CHIMERA_DATA/mnist``. Run it on an idle machine::

    python benchmarks/command_to_end.py [--turns 5]
"""

from __future__ import annotations

import argparse
import gzip
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

EXAMPLE = Path(__file__).parents[1] / "examples" / "mnist.toml"
WORKERS, BATCH, EPOCHS = 2, 64, 2


def plain(batch: int) -> None:
    """Train as the example does, in one thread."""
    import numpy as np
    import torch

    def read(name: str, header: int) -> np.ndarray:
        raw = (Path(os.environ["CHIMERA_DATA"]) / "mnist" / name).read_bytes()
        return np.frombuffer(gzip.decompress(raw), np.uint8, offset=header)

    torch.set_num_threads(1)
    torch.manual_seed(1)
    rows, test = (
        (
            torch.from_numpy(read(f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, 784).astype(np.float32) / 255),
            torch.from_numpy(read(f"{part}-labels-idx1-ubyte.gz", 8).astype(np.int64)),
        )
        for part in ("train", "t10k")
    )
    layers = (
        torch.nn.Linear(784, 128),
        torch.nn.Tanh(),
        torch.nn.Linear(128, 128),
        torch.nn.Tanh(),
        torch.nn.Linear(128, 10),
    )
    network = torch.nn.Sequential(*layers)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    for _ in range(EPOCHS):
        order = torch.randperm(len(rows[0]))
        for chosen in order.split(batch):
            loss = torch.nn.functional.cross_entropy(network(rows[0][chosen]), rows[1][chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            accuracy = (network(test[0]).argmax(1) == test[1]).float().mean().item()
        print(f"accuracy {accuracy:.4f}")


def measured(command: list[str]) -> tuple[float, float]:
    """Run a command; return its seconds, and the processor seconds of its processes."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def chimera() -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as folder:
        return measured([sys.executable, "-m", "chimera", "train", str(EXAMPLE), "--quiet", "--out", f"{folder}/run"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--plain", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.plain:
        plain(args.plain)
        return
    variants = {
        "plain script": lambda: measured([sys.executable, __file__, "--plain", str(BATCH)]),
        "plain script, merged batch": lambda: measured([sys.executable, __file__, "--plain", str(WORKERS * BATCH)]),
        "chimera train": chimera,
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in variants}
    for _ in range(args.turns):
        for name, measure in variants.items():
            found[name].append(measure())
            print(f"{name}: {found[name][-1]}", file=sys.stderr, flush=True)
    print(
        f"Python {platform.python_version()}, torch {version('torch')}, {os.cpu_count()} processors, load "
        f"{os.getloadavg()[0]:.1f}, medians of {args.turns}"
    )
    print(f"{'':28}{'seconds':>9}{'ratio':>7}{'spread':>8}{'processor s':>13}{'ratio':>7}{'spread':>8}")
    base = [statistics.median(values) for values in zip(*found["plain script"], strict=True)]
    for name, pairs in found.items():
        line = f"{name:28}"
        for values, first, width in zip(zip(*pairs, strict=True), base, (9, 13), strict=True):
            median = statistics.median(values)
            line += f"{median:{width}.2f}{median / first:7.2f}{(max(values) - min(values)) / median:8.0%}"
        print(line, flush=True)


if __name__ == "__main__":
    main()

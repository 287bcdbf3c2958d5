"""Training from image files: Chimera's workers and plain PyTorch loops that never communicate.

Two workers of one thread each decode PNG files of 64 x 64 pixels, flip and shift them at random, and train a residual network
with SGD, batch 64 per worker. The plain loops use a ``DataLoader`` with the same settings. The variants alternate. The table
shows medians over the repetitions, as samples per second of both workers together, and the ratio to the plain loops. Run it on
an idle machine::

    python benchmarks/loading.py [--turns 3] [--images 20000] [--loaders 0 1]

With ``--memory`` the script reports instead the largest resident memory of a worker and of a reading process, for 100 images
and for all images.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

WORKERS, BATCH, CLASSES, SIZE = 2, 64, 10, 64
WARM_UP, STEPS = 5, 40


def write(folder: str, begin: int, end: int) -> None:
    """Write PNG files with the numbers ``begin`` to ``end``, each in the folder of its class."""
    from PIL import Image

    for number in range(begin, end):
        rng = np.random.default_rng(number)
        coarse = rng.integers(0, 256, (8, 8, 3), np.uint8)
        image = Image.fromarray(coarse).resize((SIZE, SIZE), Image.Resampling.BICUBIC)
        image.save(f"{folder}/{number % CLASSES}/{number}.png")


def write_all(folder: Path, images: int) -> None:
    for label in range(CLASSES):
        (folder / str(label)).mkdir(parents=True)
    with ProcessPoolExecutor(2) as pool:
        bounds = np.linspace(0, images, 9, dtype=int).tolist()
        list(pool.map(write, [str(folder)] * 8, bounds[:-1], bounds[1:]))


def augment(image):
    """Return the pixels of the image, mirrored and shifted at random, as float32, shape (3, 64, 64)."""
    pixels = np.asarray(image, np.float32) / 127.5 - 1
    if random.random() < 0.5:
        pixels = pixels[:, ::-1]
    shift = random.randrange(-4, 5), random.randrange(-4, 5)
    return np.ascontiguousarray(np.roll(pixels, shift, (0, 1)).transpose(2, 0, 1))


def network():
    """Return a residual network of 176,000 parameters."""
    import torch
    from torch import nn

    class Residual(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.one, self.two = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))

        def forward(self, x):
            return torch.relu(x + self.two(torch.relu(self.one(x))))

    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=4, padding=2), nn.ReLU(), Residual(16),
        nn.Conv2d(16, 64, 3, stride=2, padding=1), nn.ReLU(), Residual(64), Residual(64),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES),
    )  # fmt: skip


def plain_worker(folder: str, loaders: int, rank: int) -> None:
    """Train in a plain loop, and print samples per second."""
    import torch
    from torch.utils.data import DataLoader

    from chimera.data.image_folder import ImageFolder

    torch.set_num_threads(1)
    torch.manual_seed(rank)
    more = {"prefetch_factor": 4, "persistent_workers": True} if loaders else {}
    loader = DataLoader(
        ImageFolder(Path(folder), augment), BATCH, shuffle=True, num_workers=loaders, drop_last=True, **more
    )
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model.train()
    step, began = 0, 0.0
    while step < WARM_UP + STEPS:
        for inputs, targets in loader:
            if step == WARM_UP:
                began = time.perf_counter()
            loss = torch.nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()
            step += 1
            if step == WARM_UP + STEPS:
                break
    print(json.dumps(STEPS * BATCH / (time.perf_counter() - began)))


def measure_plain(folder: Path, loaders: int) -> float:
    command = [sys.executable, __file__, "--worker", str(folder), "--loaders", str(loaders), "--rank"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True, env=environment)
        for rank in range(WORKERS)
    ]
    return sum(json.loads(process.communicate()[0].splitlines()[-1]) for process in processes)


def measure_chimera(folder: Path, loaders: int, strategy: str) -> float:
    """Return samples per second after the warm-up."""
    from torch.utils.data import Subset

    from chimera.data.image_folder import ImageFolder
    from chimera.training.trainer import Trainer

    data = ImageFolder(folder, augment)
    with tempfile.TemporaryDirectory() as out:
        run = Trainer(
            f"{__file__}:network",
            (data, Subset(data, range(BATCH))),
            strategy=strategy,
            workers=WORKERS,
            batch_size=BATCH,
            loader={"workers": loaders},
            optimizer={"name": "sgd", "lr": 0.01},
            rounds=WARM_UP + STEPS,
            log_every=WARM_UP,
            evaluate_every=10**9,
            out=Path(out) / "run",
        ).fit()
    first, last = run.rows[0], run.rows[-2 if "loss" in run.rows[-1] and len(run.rows) > 2 else -1]
    return (last["samples"] - first["samples"]) / (last["seconds"] - first["seconds"])


class PeakMemory(threading.Thread):
    """Reads the resident memory of all processes below this one, every 0.2 s, until it is stopped.

    Attributes
    ----------
    peaks : largest resident memory in MB of the processes at each depth below this one.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peaks: dict[int, float] = {}
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.2):
            self.read(os.getpid(), 0)

    def read(self, process: int, depth: int) -> None:
        folder = Path(f"/proc/{process}")
        try:
            pages = int((folder / "statm").read_text().split()[1])
            children = [
                child for task in (folder / "task").iterdir() for child in (task / "children").read_text().split()
            ]
        except (FileNotFoundError, ProcessLookupError):  # the process has ended
            return
        self.peaks[depth] = max(self.peaks.get(depth, 0.0), pages * os.sysconf("SC_PAGE_SIZE") / 2**20)
        for child in children:
            self.read(int(child), depth + 1)


def report_memory(images: int, loaders: int) -> None:
    """Print the memory of workers and reading processes."""
    print(f"{loaders} reading processes per worker\n{'':16}{'worker':>10}{'reading process':>18}")
    for count in (100, images):
        with tempfile.TemporaryDirectory() as folder:
            write_all(Path(folder) / "images", count)
            memory = PeakMemory()
            memory.start()
            measure_chimera(Path(folder) / "images", loaders, "all-reduce")
            memory.ended.set()
            memory.join()
        # the driver starts a fork server, which starts the workers, which start the reading processes
        print(f"{count:>9,} images{memory.peaks[2]:>7.0f} MB{memory.peaks.get(3, 0):>15.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--loaders", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        plain_worker(args.worker, args.loaders[0], args.rank)
        return
    if args.memory:
        report_memory(args.images, args.loaders[-1])
        return
    import torch

    import chimera

    print(
        f"Python {platform.python_version()}, chimera {chimera.__version__}, torch {torch.__version__}, {os.cpu_count()} "
        f"processors, {args.images:,} PNG files, medians of {args.turns} turns"
    )
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder) / "images"
        write_all(files, args.images)
        for loaders in args.loaders:
            found: dict[str, list[float]] = {"two plain loops": [], "all-reduce": [], "parameter-server": []}
            for _ in range(args.turns):
                for name, values in found.items():
                    plain = name == "two plain loops"
                    values.append(measure_plain(files, loaders) if plain else measure_chimera(files, loaders, name))
            base = statistics.median(found["two plain loops"])
            print(
                f"\n{loaders} reading processes per worker\n{'':24}{'samples/s':>12}{'of plain loops':>16}{'spread':>9}"
            )
            for name, values in found.items():
                middle = statistics.median(values)
                spread = (max(values) - min(values)) / middle
                print(f"{name:24}{middle:12,.0f}{middle / base:16.2f}{spread:9.0%}")


if __name__ == "__main__":
    main()

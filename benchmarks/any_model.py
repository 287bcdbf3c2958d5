"""Steps of users' models: Chimera's workers, plain PyTorch loops, and PyTorch DDP.

Two workers of one thread each train a model of each kind, with SGD, from samples that are read one by one. The plain loops use
a ``DataLoader`` on the same data set, and never communicate. In ``barrier``, the same loops wait for each other before each
step and send nothing: the least cost of synchronous training on this machine. ``ddp`` is PyTorch's ``DistributedDataParallel``
over gloo. ``fed-avg`` takes 40 local steps between two messages. The variants alternate. The table shows medians over the
repetitions: milliseconds of a step, and the step's time relative to the plain loops, in which 1.03 means 3 % more. Run it on an
idle machine::

    python benchmarks/any_model.py [--turns 3] [--steps 160] [--models bert gpt ...]
"""

from __future__ import annotations

import argparse
import os
import platform
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing import Queue, get_context
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "parts"))
WORKERS, WARM_UP, SAMPLES = 2, 8, 4096
PLAIN = ("plain", "barrier", "ddp")
VARIANTS = (*PLAIN, "all-reduce", "parameter-server", "fed-avg")
LOCAL_STEPS = 40  # of fed-avg: its workers rarely wait for each other, as the plain loops


class Samples:
    """A map-style data set of samples that a function returns for row numbers; all are computed once."""

    def __init__(self, sample: Callable[[np.random.Generator, int], Any]) -> None:
        self.samples = [sample(np.random.default_rng(row), row) for row in range(SAMPLES)]

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, row: int) -> Any:
        return self.samples[row]


class Subject(NamedTuple):
    """A model, its samples and its batch; the plain loop computes the loss by ``step(model, batch)``."""

    network: Callable[[], Any]
    samples: Callable[[], Samples]
    batch: int
    step: Callable[[Any, Any], Any]
    collate: Callable[[list[Any]], Any] | None = None


def cross_entropy(outputs: Any, targets: Any) -> Any:
    from torch.nn import functional

    return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def on_pair(model: Any, batch: Any) -> Any:
    return cross_entropy(model(batch[0]), batch[1])


def image(rng: np.random.Generator, row: int) -> Any:
    return rng.standard_normal((3, 64, 64), np.float32), row % 10


def network() -> Any:
    from loading import network

    return network()


def bert() -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    return BertForSequenceClassification(BertConfig(vocab_size=1000, num_labels=2, **sizes))


def text(rng: np.random.Generator, row: int) -> Any:
    import torch

    tokens = torch.from_numpy(rng.integers(1, 1000, 32))
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": torch.tensor(row % 2)}


def language_model() -> Any:
    from gpt import gpt

    return gpt(outputs=256)


def block(rng: np.random.Generator, row: int) -> Any:  # noqa: ARG001
    tokens = rng.integers(0, 256, 65)
    return tokens[:-1], tokens[1:]


def two_towers() -> Any:
    from torch import nn

    class TwoTowers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = (
                nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
                for _ in range(2)
            )

        def forward(self, user: Any, item: Any) -> Any:
            return self.one(user) * self.two(item)

    return TwoTowers()


def pair(rng: np.random.Generator, row: int) -> Any:
    return rng.standard_normal(256, np.float32), rng.standard_normal(256, np.float32), row % 10


def recurrent() -> Any:
    from torch import nn

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.out = nn.LSTM(16, 64, batch_first=True), nn.Linear(64, 10)

        def forward(self, series: Any, lengths: Any) -> Any:
            packed = nn.utils.rnn.pack_padded_sequence(series, lengths, batch_first=True, enforce_sorted=False)
            return self.out(self.lstm(packed)[1][0][-1])

    return Recurrent()


def series(rng: np.random.Generator, row: int) -> Any:
    return rng.standard_normal((10 + row % 11, 16), np.float32), row % 10


def pad(samples: list[Any]) -> dict[str, Any]:
    import torch

    arrays = [torch.from_numpy(array) for array, _ in samples]
    return {
        "series": torch.nn.utils.rnn.pad_sequence(arrays, batch_first=True),
        "lengths": torch.tensor([len(array) for array in arrays]),
        "labels": torch.tensor([label for _, label in samples]),
    }


def on_series(model: Any, batch: Any) -> Any:
    return cross_entropy(model(batch["series"], batch["lengths"]), batch["labels"])


SUBJECTS = {
    "residual network": Subject(network, lambda: Samples(image), 64, on_pair),
    "bert": Subject(bert, lambda: Samples(text), 32, lambda model, batch: model(**batch).loss),
    "gpt": Subject(language_model, lambda: Samples(block), 16, on_pair),
    "two towers": Subject(two_towers, lambda: Samples(pair), 256, lambda m, b: cross_entropy(m(b[0], b[1]), b[2])),
    "lstm": Subject(recurrent, lambda: Samples(series), 32, on_series, pad),
}


def plain_worker(name: str, steps: int, variant: str, rank: int, barrier: Barrier, times: Queue) -> None:
    """Train in a plain loop, and put its milliseconds per step into ``times``."""
    import torch
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    torch.manual_seed(rank)
    subject = SUBJECTS[name]
    loader = DataLoader(subject.samples(), subject.batch, shuffle=True, drop_last=True, collate_fn=subject.collate)
    model = subject.network().train()
    if variant == "ddp":
        torch.distributed.init_process_group("gloo", rank=rank, world_size=WORKERS)
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step, began = 0, 0.0
    while step < WARM_UP + steps:
        for batch in loader:
            if step == WARM_UP:
                began = time.perf_counter()
            loss = subject.step(model, batch)
            optimizer.zero_grad()
            loss.backward()
            if variant == "barrier":
                barrier.wait()
            optimizer.step()
            loss.item()
            step += 1
            if step == WARM_UP + steps:
                break
    times.put(1000 * (time.perf_counter() - began) / steps)


def measure_plain(name: str, steps: int, variant: str) -> float:
    """Return the milliseconds of a step, the mean of two loops at the same time."""
    context = get_context("spawn")
    barrier, times = context.Barrier(WORKERS), context.Queue()
    with socket.create_server(("127.0.0.1", 0)) as server:
        os.environ.update(OMP_NUM_THREADS="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(server.getsockname()[1]))
    loops = [
        context.Process(target=plain_worker, args=(name, steps, variant, rank, barrier, times))
        for rank in range(WORKERS)
    ]
    for loop in loops:
        loop.start()
    found = [times.get(timeout=600) for _ in loops]
    for loop in loops:
        loop.join()
    return statistics.mean(found)


def measure_chimera(name: str, steps: int, strategy: str) -> float:
    """Return the milliseconds of a step after the warm-up."""
    import chimera
    from chimera.training.trainer import Trainer

    subject, local = SUBJECTS[name], LOCAL_STEPS if strategy == "fed-avg" else 1
    data = chimera.SampleDataset(subject.samples(), collate=subject.collate)
    with tempfile.TemporaryDirectory() as out:
        run = Trainer(
            chimera.TorchModel(subject.network(), metrics=[]),
            (data, data.subset(np.arange(subject.batch))),
            strategy={"name": strategy, **({"local_steps": local} if local > 1 else {})},
            workers=WORKERS,
            batch_size=subject.batch,
            optimizer={"name": "sgd", "lr": 0.01},
            rounds=-(-WARM_UP // local) + -(-steps // local),
            log_every=-(-WARM_UP // local),
            evaluate_every=10**9,
            out=Path(out) / "run",
        ).fit()
    rows = [row for row in run.rows if "loss" not in row]
    first, last = rows[0], rows[-1]
    steps_taken = (last["samples"] - first["samples"]) / (WORKERS * subject.batch)
    return 1000 * (last["seconds"] - first["seconds"]) / steps_taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--models", nargs="+", choices=SUBJECTS, default=list(SUBJECTS))
    args = parser.parse_args()
    import torch

    import chimera

    print(
        f"Python {platform.python_version()}, chimera {chimera.__version__}, torch {torch.__version__}, {os.cpu_count()} "
        f"processors, medians of {args.turns} turns\n{'':18}{'plain loops':>14}"
        + "".join(f"{variant:>18}" for variant in VARIANTS[1:])
    )
    for name in args.models:
        found: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
        for _ in range(args.turns):
            for variant, values in found.items():
                measure = measure_plain if variant in PLAIN else measure_chimera
                values.append(measure(name, args.steps, variant))
        plain, *others = (statistics.median(values) for values in found.values())
        print(f"{name:18}{plain:11.2f} ms" + "".join(f"{one:9.2f} ms {one / plain:5.2f}" for one in others), flush=True)


if __name__ == "__main__":
    main()

"""Bytes sent, seconds of a round and memory of a run whose batches touch few rows of large tables.

The runs train word vectors with negative sampling (CBOW, five words a window) on `local` with two workers and two servers.
Words are drawn by Zipf's law, and the 512 windows of a batch share their negatives. The same rounds run with all rows, with the
codec `rows` behind `delta`, and with workers that pull and push only the rows that they need. The last run has a vocabulary of
a million words::

    python benchmarks/sparse_rows.py [--words 79000] [--large 1000000] [--width 100] [--rounds 20]

and the processor time of the calls of a round by rows, for which the machine need not be idle::

    python benchmarks/sparse_rows.py --calls [--words 79000] [--width 100] [--rounds 200]
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

import chimera
from chimera.core.parameters import Flat, Layout
from chimera.data.assignment import orders
from chimera.data.dataset import Dataset
from chimera.data.partition import PARTITIONERS
from chimera.data.split import Split
from chimera.training.optimizers.optimizer import OptimizerSettings
from chimera.training.server.parameter_shard import ParameterShard
from chimera.training.worker.learner import Learner

WINDOWS, CONTEXT, WORKERS, SHARDS = 512, 4, 2, 2
CODECS: dict[str, dict[str, Any]] = {
    "all rows": {"name": "identity"},
    "rows, delta": {"name": "rows", "downlink": {"name": "delta", "codec": "rows"}},
    "rows by rows": {"name": "rows", "downlink": "rows"},
}


class Cbow:
    """Continuous bag of words with shared negatives for a batch, in NumPy (Mikolov et al. 2013)."""

    def __init__(self, words: int, width: int, negatives: int) -> None:
        self.layout = Layout(("embedding", "output"), ((words, width), (words, width)))
        self._words, self._width, self._negatives, self._seed = words, width, negatives, 0
        self._flat: Flat | None = None
        self._full: Flat | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_flat": None, "_full": None}  # its sizes determine its initial values

    def parameters(self) -> Flat:
        if self._flat is None:
            self._flat = np.zeros(self.layout.size, np.float32)
            first = self._flat[: self._words * self._width]
            np.random.default_rng(0).random(dtype=np.float32, out=first)
            first -= np.float32(0.5)
            first /= np.float32(self._width)
        return self._flat

    def load(self, flat: Flat) -> None:
        self.parameters()[:] = flat

    def reseed(self, seed: int) -> None:
        self._seed = seed

    def buffers(self) -> Flat:
        return np.zeros(0, np.float32)

    def load_buffers(self, flat: Flat) -> None:
        pass

    def rows(self, batch: Any) -> dict[str, NDArray[np.int64]]:
        inputs, targets = batch
        return {"embedding": np.unique(inputs), "output": np.unique(np.concatenate([targets, self._drawn()]))}

    def row_gradient(self, batch: Any) -> tuple[dict[str, tuple[NDArray[Any], NDArray[Any]]], float]:
        inputs, targets = batch
        need, tables = self.rows(batch), self.layout.split(self.parameters())
        words, outputs = need["embedding"], need["output"]
        drawn = self._drawn()
        context = tables["embedding"][inputs].mean(1)
        right, wrong = tables["output"][targets], tables["output"][drawn]
        plus = 1 / (1 + np.exp(-np.einsum("nd,nd->n", context, right)))
        minus = 1 / (1 + np.exp(-(context @ wrong.T)))
        weight = np.float32(5 / self._negatives)  # as if each window had its own five negatives
        loss = float(-(np.log(plus + 1e-7).mean() + weight * np.log(1 - minus + 1e-7).sum(1).mean()))
        up, down = ((plus - 1) / len(inputs))[:, None], weight / len(inputs) * minus
        share = (up * right + down @ wrong) / CONTEXT
        own, other = (np.zeros((each.size, self._width), np.float32) for each in (words, outputs))
        for column in inputs.T:
            np.add.at(own, np.searchsorted(words, column), share)
        np.add.at(other, np.searchsorted(outputs, targets), up * context)
        np.add.at(other, np.searchsorted(outputs, drawn), down.T @ context)
        return {"embedding": (words, own), "output": (outputs, other)}, loss

    def gradient(self, batch: Any) -> tuple[Flat, float]:
        found, loss = self.row_gradient(batch)
        if self._full is None:
            self._full = np.empty(self.layout.size, np.float32)
        self._full.fill(0)
        for name, tensor in self.layout.split(self._full).items():
            tensor[found[name][0]] = found[name][1]
        return self._full, loss

    def evaluate(self, batch: Any) -> dict[str, float]:
        return {"loss": self.row_gradient(batch)[1]}

    def predict(self, inputs: NDArray[Any]) -> NDArray[Any]:
        return np.zeros(len(inputs), np.int64)

    def _drawn(self) -> NDArray[np.int64]:
        return zipf(np.random.default_rng(self._seed), self._words, (self._negatives,), 0.75)


def zipf(rng: np.random.Generator, words: int, shape: tuple[int, ...], power: float = 1.0) -> NDArray[np.int64]:
    """Return words drawn with probabilities that decrease as a power of their rank; 0 is the most frequent."""
    if power == 1:
        return (np.exp(rng.random(shape) * np.log(words + 1)) - 1).astype(np.int64)
    return (words * rng.random(shape) ** (1 / (1 - power))).astype(np.int64)


def text(words: int, windows: int) -> Split:
    inputs = zipf(np.random.default_rng(1), words, (windows + 100, CONTEXT + 1))
    names = tuple(map(str, range(words)))
    parts = (slice(100, None), slice(0, 100))
    return Split(*(Dataset(inputs[part, 1:], inputs[part, 0], names) for part in parts))


class Clock(chimera.Callback):
    """A callback that records when rounds end."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_progress(self, progress: chimera.Progress) -> None:  # noqa: ARG002 - it is the time that counts
        self.times.append(time.perf_counter())


class Memory(threading.Thread):
    """A monitor of the memory of this process and its descendants; shared pages count once."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak_bytes, self._over = 0, threading.Event()
        self.start()

    def run(self) -> None:
        while not self._over.wait(0.5):
            total = 0
            for process in (me := psutil.Process(), *me.children(recursive=True)):
                try:
                    total += process.memory_full_info().pss
                except psutil.Error:
                    continue
            self.peak_bytes = max(self.peak_bytes, total)

    def stop(self) -> int:
        self._over.set()
        self.join()
        return self.peak_bytes


def measure(words: int, width: int, negatives: int, codec: dict[str, Any], rounds: int) -> dict[str, float]:
    """Train; return bytes per worker and round in each direction, seconds per round, and the peak memory."""
    clock, memory = Clock(), Memory()
    with tempfile.TemporaryDirectory() as folder:
        run = chimera.train(
            Cbow(words, width, negatives),
            text(words, WINDOWS * WORKERS * rounds),
            engine="local",
            workers=WORKERS,
            strategy={"name": "parameter-server", "shards": SHARDS},
            codec=codec,
            optimizer={"name": "sgd", "lr": 25.0},
            batch_size=WINDOWS,
            rounds=rounds,
            evaluate_every=rounds,
            log_every=1,
            out=folder,
            callbacks=[clock],
        )
    gaps = np.diff(clock.times)
    messages = WORKERS * rounds
    return {
        "up": run.cost.packed_up / messages,
        "down": run.cost.packed_down / messages,
        "seconds": statistics.median(gaps[len(gaps) // 4 :]),
        "memory": memory.stop(),
        "loss": run.metrics["loss"],
    }


def calls(words: int, width: int, negatives: int, rounds: int) -> dict[str, float]:
    """Return the median processor time, in ms, of a worker's calls and of all servers' calls in a round by rows."""
    data, plain = text(words, WINDOWS * WORKERS * rounds).train, OptimizerSettings("sgd", {"lr": 25.0})
    rows: dict[str, Any] = {"codec": ("rows", {})}
    models = [Cbow(words, width, negatives) for _ in range(WORKERS)]
    readers = orders(PARTITIONERS.create("iid"), data, WORKERS, WINDOWS, 0)
    workers = [
        Learner(rank, model, data, order, optimizer=plain, downlink=("rows", {}), **rows)
        for rank, (model, order) in enumerate(zip(models, readers, strict=True))
    ]
    flat, layout = models[0].parameters(), models[0].layout
    servers = [
        ParameterShard(flat[begin:end], layout.cut(begin, end), optimizer=plain, uplink=("rows", {}), **rows)
        for begin, end in itertools.pairwise(layout.bounds(SHARDS))
    ]
    spent: dict[str, list[float]] = {}

    def timed(name: str, call: Callable[..., Any], *given: Any) -> Any:
        begin = time.process_time()
        found = call(*given)
        spent.setdefault(name, []).append((time.process_time() - begin) * 1e3)
        return found

    def gradients(worker: Learner, model: Cbow, order: Any) -> Any:
        wanted = timed("asking", worker.wanted, SHARDS)
        given = timed("reading rows", lambda: [s.rows(each) for s, each in zip(servers, wanted, strict=True)])
        step = worker.step()
        model.reseed(step)
        batch = data.take(order.batch(step))
        timed("the model's gradient", model.row_gradient, batch)
        return timed("the worker's call", worker.gradient, *given)

    for _ in range(rounds):
        sent = zip(*[gradients(*each) for each in zip(workers, models, readers, strict=True)], strict=True)
        timed("steps", lambda given: [s.update(*mine) for s, mine in zip(servers, given, strict=True)], sent)
    return {name: statistics.median(times) for name, times in spent.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", type=int, default=79_000, help="0 leaves it out")
    parser.add_argument("--large", type=int, default=1_000_000, help="0 leaves it out")
    parser.add_argument("--width", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--calls", action="store_true", help="measure only the processor time of the calls")
    options = parser.parse_args()
    if options.calls:
        torch.set_num_threads(1)  # as in the processes of workers and servers
        for negatives in (64, 256):
            with threadpool_limits(1):
                found = calls(options.words, options.width, negatives, options.rounds)
            print(f"{negatives} negatives: " + ", ".join(f"{name} {ms:.2f} ms" for name, ms in found.items()))
        return
    print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; per worker and round, {WORKERS} workers, {SHARDS} servers"
    )
    print(
        f"{'words':>10}{'negatives':>10}  {'':14}{'MB up':>8}{'MB down':>8}{'of all':>8}{'s/round':>9}{'GB peak':>9}{'loss':>8}"
    )
    cases = [(options.words, count, name) for count in (64, 256) for name in CODECS] if options.words else []
    cases += [(options.large, 256, "rows by rows")] * bool(options.large)
    for words, negatives, name in cases:
        found = measure(words, options.width, negatives, CODECS[name], options.rounds)
        share = (found["up"] + found["down"]) / (2 * 8 * words * options.width)
        print(
            f"{words:10}{negatives:10}  {name:14}{found['up'] / 1e6:8.2f}{found['down'] / 1e6:8.2f}{share:8.1%}"
            f"{found['seconds']:9.4f}{found['memory'] / 1e9:9.2f}{found['loss']:8.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()

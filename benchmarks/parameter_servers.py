"""Parameter servers on Ray and on this machine: Chimera, plain Ray, Ray Train, and no communication at all.

Each variant trains the same small network on the same random data with SGD, batch 64 per worker, two workers of one thread
each. The variants alternate, those on Ray in one Ray session per repetition. The table shows medians over the repetitions, as
samples per second of both workers together. The parameter server on plain Ray is the pattern of Ray's tutorials: an actor that
applies gradients, actors that compute them, arrays through the object store. Run it on an idle machine::

    python benchmarks/parameter_servers.py [--turns 3] [--quick] [--only plain-sync ray-sync ...]
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from data_parallel import BATCH, SAMPLES, WORKERS, arrays, measure_chimera, measure_plain, small

RATE = 0.01
CHECK_EVERY = 10  # steps by which plain Ray's synchronous driver may be ahead of its results
VARIANTS = {
    "independent": "two independent processes",
    "local-sync": "ParameterServer on local",
    "local-workers": "the same, 2 shards with workers",
    "local-async": "AsyncParameterServer on local",
    "plain-sync": "plain Ray, synchronous",
    "ray-sync": "ParameterServer on ray",
    "plain-async": "plain Ray, asynchronous",
    "ray-async": "AsyncParameterServer on ray",
    "train": "Ray Train, DDP over gloo",
    "ray-all-reduce": "AllReduce on ray",
}
GOALS = [
    ("ray-sync", "plain-sync", 2.5),
    ("ray-async", "plain-async", 2.5),
    ("ray-all-reduce", "train", 2.5),
    ("local-sync", "plain-sync", 10.0),
    ("local-workers", "plain-sync", 10.0),
    ("local-async", "plain-async", 10.0),
]
STRATEGIES = {
    "sync": "parameter-server",
    "workers": "with-workers-2",
    "async": "async-parameter-server",
    "all-reduce": "all-reduce",
}
STEPS = {"local": (600, 4000), "ray": (150, 600), "train": (150, 1000)}  # of each worker: to warm up, to measure


class Replica:
    """A copy of the network; weights and gradients are lists of NumPy arrays."""

    def __init__(self) -> None:
        import torch

        torch.set_num_threads(1)
        self.torch, self.model = torch, small()

    def weights(self):
        """Return the weights as views of the network."""
        return [parameter.detach().numpy() for parameter in self.model.parameters()]

    def load(self, weights) -> None:
        """Set these weights."""
        with self.torch.no_grad():
            for parameter, values in zip(self.model.parameters(), weights, strict=True):
                parameter.copy_(self.torch.from_numpy(values))


class PlainServer(Replica):
    """The parameter server: an actor that holds the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.optimizer = self.torch.optim.SGD(self.model.parameters(), lr=RATE)

    def get_weights(self):
        """Return the weights."""
        return self.weights()

    def apply_gradients(self, *gradients):
        """Step with the mean of the gradients, and return the weights."""
        import numpy as np

        for parameter, pieces in zip(self.model.parameters(), zip(*gradients, strict=True), strict=True):
            parameter.grad = self.torch.from_numpy(np.mean(pieces, axis=0))
        self.optimizer.step()
        return self.weights()


class PlainWorker(Replica):
    """A worker: an actor that computes gradients."""

    def __init__(self, rank: int) -> None:
        import numpy as np

        super().__init__()
        self.inputs, self.targets = (self.torch.from_numpy(array) for array in arrays())
        self.order = np.random.default_rng(rank).permutation(SAMPLES)
        self.step = 0

    def compute_gradients(self, weights):
        """Return the gradients of the next batch at these weights."""
        self.load(weights)
        rows = self.torch.from_numpy(self.order[self.step * BATCH % SAMPLES :][:BATCH])
        self.step += 1
        loss = self.torch.nn.functional.cross_entropy(self.model(self.inputs[rows]), self.targets[rows])
        self.model.zero_grad()
        loss.backward()
        return [parameter.grad.numpy() for parameter in self.model.parameters()]


def measure_plain_ray(variant: str, warm_up: int, steps: int) -> float:
    import ray

    server = ray.remote(PlainServer).options(num_cpus=1).remote()
    workers = [ray.remote(PlainWorker).options(num_cpus=1).remote(rank) for rank in range(WORKERS)]
    weights = ray.get(server.get_weights.remote())
    train = train_in_step if variant == "plain-sync" else train_at_own_pace
    train(server, workers, weights, warm_up)
    began = time.perf_counter()
    train(server, workers, weights, steps)
    seconds = time.perf_counter() - began
    for actor in (server, *workers):
        ray.kill(actor)
    return WORKERS * steps * BATCH / seconds


def train_in_step(server, workers, weights, steps: int) -> None:
    import ray

    for step in range(1, steps + 1):
        gradients = [worker.compute_gradients.remote(weights) for worker in workers]
        weights = server.apply_gradients.remote(*gradients)
        if step % CHECK_EVERY == 0 or step == steps:
            ray.get(weights)


def train_at_own_pace(server, workers, weights, steps: int) -> None:
    import ray

    computing = {worker.compute_gradients.remote(weights): worker for worker in workers}
    for _ in range(steps * len(workers)):
        (gradient, *_), _ = ray.wait(list(computing))
        worker = computing.pop(gradient)
        weights = server.apply_gradients.remote(gradient)
        computing[worker.compute_gradients.remote(weights)] = worker
    ray.get([weights, *computing])


def train_loop(settings) -> None:
    """Train on each of Ray Train's workers."""
    import numpy as np
    import torch
    from ray import train
    from ray.train.torch import prepare_model

    torch.set_num_threads(1)
    inputs, targets = (torch.from_numpy(array) for array in arrays())
    model = prepare_model(small())
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    order = np.random.default_rng(train.get_context().get_world_rank()).permutation(SAMPLES)
    for step in range(settings["warm_up"] + settings["steps"]):
        if step == settings["warm_up"]:
            torch.distributed.barrier()
            began = time.perf_counter()
        rows = torch.from_numpy(order[step * BATCH % SAMPLES :][:BATCH])
        loss = torch.nn.functional.cross_entropy(model(inputs[rows]), targets[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    seconds = time.perf_counter() - began  # the same on all workers: each step waits for all
    if train.get_context().get_world_rank() == 0:
        Path(settings["result"]).write_text(str(WORKERS * settings["steps"] * BATCH / seconds))


def measure_ray_train(warm_up: int, steps: int) -> float:
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "samples_s"
        TorchTrainer(
            train_loop,
            train_loop_config={"warm_up": warm_up, "steps": steps, "result": str(result)},
            scaling_config=ScalingConfig(num_workers=WORKERS),
            run_config=RunConfig(storage_path=folder),
        ).fit()
        return float(result.read_text())


def measure(variant: str, share: float) -> float:
    """Return samples per second of both workers."""
    engine, _, way = variant.partition("-")
    warm_up, steps = (max(int(count * share), 20) for count in STEPS["ray" if engine == "plain" else engine])
    if engine == "plain":
        return measure_plain_ray(variant, warm_up, steps)
    if engine == "train":
        return measure_ray_train(warm_up, steps)
    rounds = WORKERS if way == "async" else 1  # rounds of the run in each step of a worker
    return measure_chimera(STRATEGIES[way], "small", engine, (warm_up * rounds, steps * rounds))


@contextlib.contextmanager
def ray_session():
    """Start a Ray session that can import this script, and end it."""
    import ray

    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    runtime = {"env_vars": {"PYTHONPATH": path}}
    ray.init(
        "local",
        num_cpus=8,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
        runtime_env=runtime,
    )
    try:
        yield
    finally:
        ray.shutdown()


def turn(variants: list[str], share: float) -> dict[str, float]:
    """Measure each variant once."""
    found = {}
    on_ray = [variant for variant in variants if variant.startswith(("plain", "ray", "train"))]
    for variant in variants:
        if variant == "independent":
            found[variant] = measure_plain(variant, "small")
        elif variant not in on_ray:
            found[variant] = measure(variant, share)
    if on_ray:
        with ray_session():
            found.update({variant: measure(variant, share) for variant in on_ray})
    return found


def runnable(variants: list[str]) -> list[str]:
    """Return the variants that can run here; print the reasons why others cannot."""
    if "train" not in variants:
        return variants
    missing = [name for name in ("pyarrow", "pydantic", "requests", "fsspec", "pandas") if not find(name)]
    if not missing:
        return variants
    print(f"skipping Ray Train, which needs {', '.join(missing)}: pip install 'ray[train]'")
    return [variant for variant in variants if variant != "train"]


def find(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one repetition with a quarter of the steps")
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=list(VARIANTS), help="the variants to measure")
    args = parser.parse_args()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import numpy
    import ray
    import torch

    import chimera

    versions = (
        f"chimera {chimera.__version__}, ray {ray.__version__}, torch {torch.__version__}, numpy {numpy.__version__}"
    )
    turns, share = (1, 0.25) if args.quick else (args.turns, 1.0)
    print(
        f"Python {platform.python_version()}, {versions}, {os.cpu_count()} processors, medians of {turns} repetitions"
    )
    variants = runnable([variant for variant in VARIANTS if variant in args.only])
    found = [turn(variants, share) for _ in range(turns)]
    show({variant: [values[variant] for values in found] for variant in variants})


def show(found: dict[str, list[float]]) -> None:
    medians = {variant: statistics.median(values) for variant, values in found.items()}
    print(f"\n784-128-128-10, batch {BATCH}, {WORKERS} workers of one thread")
    print(f"{'':36}{'samples/s':>12}{'spread':>9}")
    for variant, values in found.items():
        spread = (max(values) - min(values)) / medians[variant]
        print(f"{VARIANTS[variant]:36}{medians[variant]:12,.0f}{spread:9.0%}")
    print(f"\n{'':68}{'ratio':>6}{'goal':>6}")
    for variant, other, goal in GOALS:
        if variant in medians and other in medians:
            pair = f"{VARIANTS[variant]} / {VARIANTS[other]}"
            ratio = statistics.median(a / b for a, b in zip(found[variant], found[other], strict=True))
            print(f"{pair:68}{ratio:6.2f}{goal:6.1f}")


if __name__ == "__main__":
    main()

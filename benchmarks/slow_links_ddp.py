"""One process of `DistributedDataParallel` in a namespace: MNIST with each hook in turn, a line of JSON for each.

``slow_links.py`` starts ``python -m slow_links_ddp SETTINGS`` in the namespace of each machine.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

BATCH, EVERY = 64, 5
NETWORKS = {"small": (784, 128, 128, 10), "large": (784, 2048, 2048, 2048, 10)}
OPTIMIZER = {"lr": 0.05, "momentum": 0.9}
WARM_UP = 3  # steps; DDP rebuilds its buckets, and kernels are compiled
RANK = 2
ALONE = "no communication"
HOOKS = {
    ALONE: None,
    "plain": None,
    "torch fp16": "fp16_compress_hook",
    "torch PowerSGD": "powerSGD_hook",
    "identity": {"name": "identity"},
    "cast": {"name": "cast"},
    "int8": {"name": "int8"},
    "powersgd": {"name": "powersgd", "rank": RANK},
    "top-k": {"name": "top-k", "ratio": 0.01, "error_feedback": True},
    "sign": {"name": "sign", "error_feedback": True},
}
CAP_MB = 100  # one bucket for torch's PowerSGD, which exchanges several of them in an order that may differ between processes


def build(network: str) -> Any:
    import torch

    torch.manual_seed(0)
    layers: list[Any] = []
    for inputs, outputs in itertools.pairwise(NETWORKS[network]):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def small() -> Any:
    """Return the small network; workers can import this factory."""
    return build("small")


def large() -> Any:
    """Return the network of ten million parameters."""
    return build("large")


def arrays() -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Return the training images and labels of MNIST, and every fifth test image and label."""
    from chimera.data.mnist import mnist

    split = mnist()
    images, tests = (each.inputs.reshape(len(each.inputs), -1) for each in (split.train, split.test))
    return (images.copy(), split.train.targets.copy()), (tests[::EVERY].copy(), split.test.targets[::EVERY].copy())


def register(ddp: Any, hook: str) -> None:
    """Register a hook of `HOOKS`."""
    import chimera

    wanted = HOOKS[hook]
    if isinstance(wanted, dict):
        state, compress = chimera.ddp.hook(wanted)
        ddp.register_comm_hook(state, compress)
    elif wanted is not None:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

        if hasattr(default_hooks, wanted):
            ddp.register_comm_hook(None, getattr(default_hooks, wanted))
        else:
            state = powerSGD_hook.PowerSGDState(None, RANK, start_powerSGD_iter=2, min_compression_rate=1)
            ddp.register_comm_hook(state, getattr(powerSGD_hook, wanted))


class Process:
    """The data of a process, and its measurements."""

    def __init__(self, settings: dict[str, Any]) -> None:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        self.torch, self.dist = torch, dist
        self.rank, self.size = settings["rank"], settings["size"]
        store = f"tcp://{settings['address']}:29500"
        limit = timedelta(seconds=settings["timeout_s"])
        dist.init_process_group("gloo", init_method=store, rank=self.rank, world_size=self.size, timeout=limit)
        train, test = ([torch.from_numpy(each) for each in part] for part in arrays())
        self.train, self.test = [each[self.rank :: self.size] for each in train], test
        self.sent = Path(settings["counter"])

    def measure(self, hook: str, network: str, steps: int, target: float | None, evaluate_every: int) -> dict[str, Any]:
        """Train for some steps, or until the accuracy is reached; return the measurements."""
        torch, dist = self.torch, self.dist
        model = build(network)
        ddp = model
        if hook != ALONE:
            cap = {"bucket_cap_mb": CAP_MB} if "PowerSGD" in hook else {}
            ddp = torch.nn.parallel.DistributedDataParallel(model, **cap)
            register(ddp, hook)
        optimizer = torch.optim.SGD(model.parameters(), **OPTIMIZER)
        order = torch.randperm(len(self.train[1]), generator=torch.Generator().manual_seed(self.rank))
        durations, losses, reached = [], [], {}
        dist.barrier()
        began_s = time.perf_counter()
        for step in range(steps):
            if step == WARM_UP:
                dist.barrier()
                sent = self._counted()
            step_s = time.perf_counter()
            rows = order[torch.arange(step * BATCH, (step + 1) * BATCH) % len(order)]
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(ddp(self.train[0][rows]), self.train[1][rows])
            loss.backward()
            optimizer.step()
            durations.append(time.perf_counter() - step_s)
            losses.append(loss.item())
            if target and (step + 1) % evaluate_every == 0 and self._accuracy(model) >= target:
                reached = {"steps_to_target": step + 1, "target_s": time.perf_counter() - began_s}
                break
        found = torch.tensor(losses)
        dist.all_reduce(found)
        measured = durations[WARM_UP:]
        return {
            "step_s": statistics.median(measured),
            "samples_s": self.size * BATCH * len(measured) / sum(measured),
            "bytes": (self._counted() - sent) / len(measured),
            "losses": (found / self.size).tolist(),
            **reached,
        }

    def _counted(self) -> int:
        return int(self.sent.read_text())

    def _accuracy(self, model: Any) -> float:
        """Return the accuracy on the test images, which all processes compute, since their weights are the same."""
        with self.torch.no_grad():
            return float((model(self.test[0]).argmax(1) == self.test[1]).float().mean())


def main() -> None:
    settings = json.loads(sys.argv[1])
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # gloo prints
    process = Process(settings)
    for measurement in settings["measurements"]:
        print(json.dumps(process.measure(**measurement)), file=out, flush=True)
    process.dist.destroy_process_group()


if __name__ == "__main__":
    main()

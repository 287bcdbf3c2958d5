"""Processes that train with ``DistributedDataParallel``; each is an actor, so that many tests use the same ones."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

import chimera
from chimera.core.engine import Engine

OPTIONS: dict[str, Any] = {"hidden": 24, "steps": 6, "cap_mb": 25.0, "rate": 0.1}


class Trainer:
    """One process of a group, by default over gloo; all processes on a GPU use the first one."""

    def __init__(self, rank: int, size: int, store: str, backend: str = "gloo", device: str = "cpu") -> None:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=size)
        self.rank, self._device = rank, device

    def pid(self) -> int:
        """Return the number of the process."""
        return os.getpid()

    def train(self, codec: Any = None, **changed: Any) -> dict[str, Any]:
        """Train a small network; return its weights, what the hook counted, and sums over the steps.

        Parameters
        ----------
        codec : the codec; None: no hook; ``torch``: torch's own PowerSGD; ``taken over``: the same, until the step
            ``change``, from which on Chimera's continues with the state of torch's.
        changed : options that differ from `OPTIONS`; ``poison``: the step in which rank 1 has a gradient that is not finite;
            ``split``: the step after which module and state are saved and loaded; ``unused``: a layer that no loss depends on.
        """
        import torch
        from torch.nn.parallel import DistributedDataParallel

        options = {**OPTIONS, **changed}

        def module() -> Any:
            torch.manual_seed(0)
            hidden = options["hidden"]
            layers = [torch.nn.Linear(12, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, hidden), torch.nn.Tanh()]
            made = torch.nn.Sequential(*layers, torch.nn.Linear(hidden, 3))
            if options.get("unused"):
                made.add_module("none", torch.nn.Identity())
                made.register_parameter("spare", torch.nn.Parameter(torch.ones(5, 5)))
            return made.to(self._device)

        def wrapped(net: Any, kept: Any) -> tuple[Any, Any]:
            made = DistributedDataParallel(
                net, bucket_cap_mb=options["cap_mb"], find_unused_parameters=bool(options.get("unused"))
            )
            return made, self._register(made, codec, kept, options)

        net = module()
        ddp, state = wrapped(net, None)
        rng = np.random.default_rng([7, self.rank])
        sums = {"own": 0.0, "mean": 0.0}
        finite = []
        for step in range(options["steps"]):
            inputs = torch.from_numpy(rng.standard_normal((16, 12), np.float32)).to(self._device)
            labels = inputs[:, :3].argmax(1)
            if step == options.get("split"):
                weights, kept = net.state_dict(), state.state_dict()
                net = module()
                net.load_state_dict(weights)
                ddp, state = wrapped(net, kept)
            own = self._own_gradient(net, inputs, labels)
            net.zero_grad()
            for _ in range(options.get("accumulate", 0)):
                with ddp.no_sync():
                    torch.nn.functional.cross_entropy(ddp(inputs), labels).backward()
            loss = torch.nn.functional.cross_entropy(ddp(inputs), labels)
            if step == options.get("poison") and self.rank == 1:
                loss = loss * float("nan")
            loss.backward()
            mean = torch.cat([each.grad.reshape(-1) for each in net.parameters() if each.grad is not None])
            finite.append(bool(mean.isfinite().all()))
            if finite[-1]:
                sums = {"own": sums["own"] + own, "mean": sums["mean"] + mean.cpu().numpy().astype(float)}
                with torch.no_grad():
                    for each in net.parameters():
                        if each.grad is not None:
                            each -= options["rate"] * each.grad
        found = torch.cat([each.detach().reshape(-1) for each in net.parameters()]).cpu().numpy().copy()
        told = {"weights": found, "finite": finite, **sums}
        if state is not None:
            told |= {"sent": state.bytes_sent, "plain": state.bytes_plain, "steps": state.steps, "kept": _arrays(state)}
        return told

    def _own_gradient(self, net: Any, inputs: Any, labels: Any) -> Any:
        """Return this process's gradient, in the order of the parameters."""
        import torch

        used = [each for name, each in net.named_parameters() if name != "spare"]
        loss = torch.nn.functional.cross_entropy(net(inputs), labels)
        return torch.cat([each.reshape(-1) for each in torch.autograd.grad(loss, used)]).cpu().numpy().astype(float)

    def _register(self, ddp: Any, codec: Any, kept: Any, options: dict[str, Any]) -> Any:
        if codec is None:
            return None
        if codec in ("torch", "taken over"):
            return self._torch_hook(ddp, codec == "taken over", options)
        state, hook = chimera.ddp.hook(codec, **options.get("hook", {}))
        if kept is not None:
            state.load_state_dict(kept)
        ddp.register_comm_hook(state, hook)
        return state

    def _torch_hook(self, ddp: Any, taken_over: bool, options: dict[str, Any]) -> None:
        """Register torch's PowerSGD, with or without a change to Chimera's."""
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

        theirs = powerSGD_hook.PowerSGDState(None, 2, start_powerSGD_iter=2, min_compression_rate=1)
        ours, compress = chimera.ddp.hook("powersgd", rank=2)
        seen = -1

        def either(_: Any, bucket):  # type: ignore[no-untyped-def]
            nonlocal seen
            seen += 1  # there is one bucket
            if seen == options["change"]:
                shapes = [list(each.shape) for each in bucket.gradients()]
                ours.load_state_dict({**ours.state_dict(), "buckets": {0: _of_torch(theirs, shapes)}})
            if taken_over and seen >= options["change"]:
                return compress(ours, bucket)
            return powerSGD_hook.powerSGD_hook(theirs, bucket)

        ddp.register_comm_hook(None, either)


def _of_torch(theirs: Any, shapes: list[list[int]]) -> dict[str, Any]:
    """Return torch's state of the bucket 0 in the form of `State.state_dict`."""
    state, begin = {"own.memory": theirs.error_dict[0]}, 0
    for place, shape in enumerate(shapes):
        rank = min(2, *shape) if len(shape) == 2 else 0
        if rank and rank * sum(shape) < shape[0] * shape[1]:
            q = theirs.q_memory_dict[0][begin : begin + shape[1] * rank].reshape(shape[1], rank)
            state[f"shared.q{place}"] = q.T.contiguous()
            begin += shape[1] * rank
    return {"shapes": shapes, "state": state}


def _arrays(state: Any) -> dict[int, dict[str, Any]]:
    buckets = state.state_dict()["buckets"]
    return {index: {name: value.numpy() for name, value in each["state"].items()} for index, each in buckets.items()}


def group(engine: Engine, size: int, folder: Path, backend: str = "gloo", device: str = "cpu") -> list[Any]:
    """Start the processes of a group."""
    store = str(folder / f"store{size}{backend}")
    return [engine.spawn(Trainer, rank, size, store, backend, device) for rank in range(size)]


def train(engine: Engine, trainers: list[Any], codec: Any = None, **options: Any) -> list[dict[str, Any]]:
    """Train in all processes; return the results."""
    return engine.get([trainer.train(codec, **options) for trainer in trainers], timeout_s=60)

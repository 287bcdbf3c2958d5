"""Chimera on one GPU: workers that share it, one worker, DDP with a codec's hook, a language model, and codecs.

- ``workers``: two workers with SGD, batch 64 each, that share the GPU (engine ``local``); one process of
  ``DistributedDataParallel`` with the doubled batch over nccl, two such processes over gloo; and two plain processes that never
  communicate. All variants copy each batch from the host to the GPU. Plain loops never wait for the GPU; Chimera reads each
  loss.
- ``hooks``: one process of ``DistributedDataParallel`` over nccl, with and without a codec's hook. nccl accepts one rank per
  GPU, so two ranks need two GPUs.
- ``alone``: one worker with each network, and a plain loop.
- ``lora``, ``full``: adapters of rank 8 on a new Llama of 110 million parameters, or all its parameters; blocks of 512 tokens,
  AdamW: one worker, and a plain loop (with peft), in float32 and in mixed precision.
- ``codecs``: see `gpu_codecs`.

The variants alternate. Tables show medians over the repetitions; the spread is the range relative to the median. Without a GPU
the script prints one line and exits with code 2::

    python benchmarks/gpu.py [--turns 3] [--only workers alone hooks lora full codecs] [--quick]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import data_parallel
import gpu_codecs
from data_parallel import BATCH, NETWORKS, arrays
from gpu_plain import FULL, LORA, PRECISIONS, QUICK, Sizes, blocks, llama, plain_language, plain_network

HOOKS: dict[str, dict[str, Any] | None] = {
    "no hook": None,
    "cast": {"codec": "cast"},
    "int8": {"codec": "int8", "error_feedback": True},
    "top-k 1%": {"codec": "top-k", "ratio": 0.01, "sampled": True, "error_feedback": True},
    "powersgd": {"codec": "powersgd"},
}
PLAIN = {  # title, backend or None, processes, batch of each
    "independent": ("two processes, no communication", None, 2, BATCH),
    "doubled": ("one DDP process, doubled batch", "nccl", 1, 2 * BATCH),
    "ddp": ("two DDP processes, gloo", "gloo", 2, BATCH),
}
ALONE = "alone"
LANGUAGE = {"lora": "adapters", "full": "all parameters"}
STRATEGIES = {"all-reduce": "Chimera all-reduce", "parameter-server": "Chimera parameter-server"}


def plain_process(variant: str, sizes: Sizes, rank: int, port: int) -> None:
    """Measure a plain variant in this process, and print its figures by name."""
    import torch.distributed as dist

    if variant in LANGUAGE:
        found = {precision: plain_language(sizes, precision, lora=variant == "lora") for precision in PRECISIONS}
        print(json.dumps(found))
        return
    backend, size, batch = {"hooks": ("nccl", 1, BATCH), ALONE: (None, 1, BATCH)}.get(variant) or PLAIN[variant][1:]
    dist.init_process_group(backend or "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    if variant == "hooks":
        found = {name: plain_network("large", sizes, BATCH, rank, backend, hook) for name, hook in HOOKS.items()}
    else:
        found = {network: plain_network(network, sizes, batch, rank, backend, None) for network in NETWORKS}
    dist.destroy_process_group()
    print(json.dumps(found))


def measure_plain(variant: str, *, quick: bool) -> dict[str, float]:
    """Run the processes of a plain variant; return the sums of their figures."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, __file__, "--process", variant, "--port", str(port), *(["--quick"] if quick else [])]
    size = PLAIN[variant][2] if variant in PLAIN else 1
    processes = [
        subprocess.Popen([*command, "--rank", str(rank)], stdout=subprocess.PIPE, text=True) for rank in range(size)
    ]
    found = [json.loads(process.communicate()[0].splitlines()[-1]) for process in processes]
    return {name: sum(each[name] for each in found) for name in found[0]}


def measure_chimera(model: Any, data: Any, steps: tuple[int, int], batch: int, workers: int, **options: Any) -> float:
    """Train workers on the GPU; return samples per second after the rounds that warm up."""
    from chimera.training.trainer import Trainer

    warm_up, rounds = steps
    with tempfile.TemporaryDirectory() as folder:
        run = Trainer(
            model, data, workers=workers, batch_size=batch, engine="local",
            rounds=2 * warm_up + rounds,  # the last row includes the evaluation at the end
            log_every=warm_up, evaluate_every=10**9, worker_resources={"gpus": 1}, out=Path(folder) / "run", **options,
        ).fit()  # fmt: skip
    rows = [row for row in run.rows if "loss" not in row]
    first, last = rows[0], rows[-1]
    return float((last["samples"] - first["samples"]) / (last["seconds"] - first["seconds"]))


def measure_strategy(strategy: str, sizes: Sizes, workers: int = 2) -> dict[str, float]:
    data = arrays(), tuple(array[:2] for array in arrays())
    options = {"strategy": strategy, "optimizer": {"name": "sgd", "lr": 0.01}}
    return {
        network: measure_chimera(f"{data_parallel.__file__}:{network}", data, sizes.steps[network], BATCH, workers, **options)
        for network in NETWORKS
    }  # fmt: skip


def measure_language(sizes: Sizes, *, lora: bool) -> dict[str, float]:
    import chimera

    samples = list(zip(*blocks(sizes), strict=True))
    data = chimera.SampleDataset(samples), chimera.SampleDataset([tuple(part[:16] for part in samples[0])])
    model = {"name": "huggingface", "task": "causal-lm", "from": "config", "config": llama(sizes)}
    model |= {"lora": LORA} if lora else {}
    options = {"strategy": "all-reduce", "optimizer": {"name": "adamw", "lr": 1e-3}}
    return {
        precision: sizes.block
        * measure_chimera(model, data, sizes.lora_steps, sizes.batch, 1, precision=precision, **options)
        for precision in PRECISIONS
    }


def table(title: str, variants: dict[str, Callable[[], dict[str, float]]], turns: int) -> None:
    """Measure variants in turn, and print the medians of their figures beside those of the first variant."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in variants}
    for _ in range(turns):
        for name, measure in variants.items():
            found[name].append(measure())
            print(f"{name}: {found[name][-1]}", file=sys.stderr, flush=True)
    first = next(iter(variants))
    print(f"\n{title}")
    for column in found[first][0]:
        print(f"{column:34}{'per s':>12}{'of the first':>14}{'spread':>9}")
        base = statistics.median(each[column] for each in found[first])
        for name, each in found.items():
            values = [figures[column] for figures in each]
            median = statistics.median(values)
            print(
                f"  {name:32}{median:12,.0f}{median / base:14.2f}{(max(values) - min(values)) / median:9.0%}",
                flush=True,
            )


def compare_hooks(turns: int, *, quick: bool) -> None:
    """Print samples per second with each hook; one process measures all, so that they alternate."""
    found = [measure_plain("hooks", quick=quick) for _ in range(turns)]
    print("\nhooks: DDP over nccl, one rank, large network, samples/s")
    base = statistics.median(each["no hook"] for each in found)
    for name in HOOKS:
        values = [each[name] for each in found]
        median = statistics.median(values)
        print(f"  {name:32}{median:12,.0f}{median / base:14.2f}{(max(values) - min(values)) / median:9.0%}")


def compare_language(name: str, sizes: Sizes, turns: int, *, quick: bool) -> None:
    """Print tokens per second of one worker and of a plain loop."""
    variants = {
        "plain loop": lambda: measure_plain(name, quick=quick),
        "Chimera all-reduce, one worker": lambda: measure_language(sizes, lora=name == "lora"),
    }
    table(f"{LANGUAGE[name]}: batch {sizes.batch} x {sizes.block} tokens, tokens/s", variants, turns)


def main() -> int:
    sections = ("workers", ALONE, "hooks", *LANGUAGE, "codecs")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=sections, default=sections)
    parser.add_argument("--quick", action="store_true", help="small sizes and few steps: the figures mean nothing")
    parser.add_argument("--process", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print(f"this benchmark needs a GPU, and torch {torch.__version__} sees none", file=sys.stderr)
        return 2
    sizes = QUICK if args.quick else FULL
    if args.process:
        plain_process(args.process, sizes, args.rank, args.port)
        return 0
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "peft", "numpy"))
    print(
        f"{torch.cuda.get_device_name()}, Python {platform.python_version()}, {versions}, {os.cpu_count()} processors"
    )
    if "workers" in args.only:
        variants = {title: lambda n=name: measure_plain(n, quick=args.quick) for name, (title, *_) in PLAIN.items()}
        variants |= {title: lambda n=name: measure_strategy(n, sizes) for name, title in STRATEGIES.items()}
        table(f"workers: batch {BATCH} per worker, samples/s", variants, args.turns)
    if ALONE in args.only:
        one = {name: lambda n=name: measure_strategy(n, sizes, 1) for name in STRATEGIES}
        table(
            "one worker: samples/s", {"plain loop": lambda: measure_plain(ALONE, quick=args.quick), **one}, args.turns
        )
    if "hooks" in args.only:
        compare_hooks(args.turns, quick=args.quick)
    for name in (name for name in LANGUAGE if name in args.only):
        compare_language(name, sizes, args.turns, quick=args.quick)
    if "codecs" in args.only:
        gpu_codecs.compare(sizes.codec_elements, sizes.repeats)
    return 0


if __name__ == "__main__":
    sys.exit(main())

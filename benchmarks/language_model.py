"""Tokens per second of language models: two local workers of Chimera, PyTorch DDP, and loops that never communicate.

- ``gpt``: a new GPT-2 of 10 million parameters; all are trained, by ``all-reduce`` and by ``diloco``, which exchanges every 50
  steps.
- ``lora``: adapters of rank 8 on a frozen Llama of 21 million parameters, by ``all-reduce``.

Each variant has two processes of one thread, float32, AdamW, and the same random tokens in blocks of 128; no dropout. Weights
are new: speed does not depend on their values. The variants alternate. The table shows medians over the repetitions: tokens per
second of both processes, FLOPs per second by the formula of docs/language_models.md, and ratios to two independent loops (the
upper limit) and to DDP over gloo. Run it on an idle machine::

    python benchmarks/language_model.py [--turns 3] [--models gpt lora] [--quick]

``--quick`` only shows that everything runs: small models, few steps.
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
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from any_model import WORKERS, Samples

OPTIMIZER = {"name": "adamw", "lr": 1e-3}
DILOCO = "diloco"
PLAIN = {"independent": "two independent loops", "ddp": "PyTorch DDP, gloo"}
TITLES = {**PLAIN, "all-reduce": "Chimera all-reduce", DILOCO: "Chimera diloco"}
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


class Sizes(NamedTuple):
    """The sizes of a measurement: ``local_steps`` are those of DiLoCo, ``diloco_rounds`` the rounds of it that are measured."""

    gpt: dict[str, Any]
    llama: dict[str, Any]
    vocabulary: int
    block: int
    batch: int
    warm_up: int
    steps: int
    local_steps: int
    diloco_rounds: int


FULL = Sizes(
    gpt={"n_layer": 6, "n_embd": 320, "n_head": 5},
    llama={"num_hidden_layers": 8, "hidden_size": 384, "intermediate_size": 1024, "num_attention_heads": 6},
    vocabulary=8192, block=128, batch=4, warm_up=4, steps=40, local_steps=50, diloco_rounds=2,
)  # fmt: skip
QUICK = Sizes(
    gpt={"n_layer": 1, "n_embd": 32, "n_head": 2},
    llama={"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2},
    vocabulary=256, block=16, batch=2, warm_up=2, steps=6, local_steps=3, diloco_rounds=2,
)  # fmt: skip


class Subject(NamedTuple):
    """A model: its options in ``[model]``, and the variants that are measured."""

    options: dict[str, Any]
    variants: tuple[str, ...]


def subjects(sizes: Sizes) -> dict[str, Subject]:
    common = {"vocab_size": sizes.vocabulary, "bos_token_id": 0, "eos_token_id": 0}
    gpt = {"model_type": "gpt2", "n_positions": sizes.block, **sizes.gpt, **NO_DROPOUT, **common}
    llama = {"model_type": "llama", "max_position_embeddings": sizes.block, **sizes.llama, **common}
    lora = {"r": 8, "targets": ["q_proj", "v_proj"]}
    new = {"name": "huggingface", "task": "causal-lm", "from": "config"}
    return {
        "gpt": Subject({**new, "config": gpt}, (*PLAIN, "all-reduce", DILOCO)),
        "lora": Subject({**new, "config": llama, "lora": lora}, (*PLAIN, "all-reduce")),
    }


def block(rng: np.random.Generator, row: int, *, sizes: Sizes) -> Any:  # noqa: ARG001
    tokens = rng.integers(0, sizes.vocabulary, sizes.block + 1)
    return tokens[:-1], tokens[1:]


def samples(sizes: Sizes) -> Samples:
    return Samples(partial(block, sizes=sizes))


def network(subject: Subject) -> Any:
    """Return the module of a subject, made without Chimera."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(**subject.options["config"])
    module = AutoModelForCausalLM.from_config(config)
    if "lora" not in subject.options:
        return module
    from peft import LoraConfig, get_peft_model

    lora = subject.options["lora"]
    return get_peft_model(
        module, LoraConfig(r=lora["r"], lora_alpha=16, target_modules=lora["targets"], task_type="CAUSAL_LM")
    )


def flops_per_token(subject: Subject) -> float:
    parameters = list(network(subject).parameters())
    return float(sum((6 if each.requires_grad else 4) * each.numel() for each in parameters))


def plain_worker(variant: str, subject: Subject, sizes: Sizes, rank: int, port: int) -> None:
    """Train in a plain loop, alone or under DDP, and print tokens per second."""
    import torch
    import torch.distributed as dist
    from torch.nn.functional import cross_entropy
    from torch.utils.data import DataLoader

    warnings.filterwarnings("ignore", category=FutureWarning)  # of transformers, about peft's use of it
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORKERS)
    model = network(subject).train()
    if variant == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=OPTIMIZER["lr"])
    torch.manual_seed(rank)
    batches = iter(DataLoader(samples(sizes), sizes.batch, shuffle=True, drop_last=True))
    for step in range(sizes.warm_up + sizes.steps):
        if step == sizes.warm_up:
            dist.barrier()
            began = time.perf_counter()
        tokens, targets = next(batches)
        logits = model(input_ids=tokens, use_cache=False).logits
        loss = cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
    seconds = time.perf_counter() - began
    dist.destroy_process_group()
    print(json.dumps(sizes.steps * sizes.batch * sizes.block / seconds))


def measure_plain(variant: str, name: str, *, quick: bool) -> float:
    """Return the tokens per second of two processes together."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, __file__, "--worker", variant, "--models", name, "--port", str(port)]
    command += ["--quick"] if quick else []
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen([*command, "--rank", str(rank)], stdout=subprocess.PIPE, text=True, env=environment)
        for rank in range(WORKERS)
    ]
    return sum(json.loads(process.communicate()[0].splitlines()[-1]) for process in processes)


def measure_chimera(variant: str, subject: Subject, sizes: Sizes) -> float:
    """Return the tokens per second of two workers after the warm-up, which for DiLoCo is its first round."""
    import chimera
    from chimera.training.trainer import Trainer

    local = variant == DILOCO
    warm_up, rounds = (1, sizes.diloco_rounds) if local else (sizes.warm_up, sizes.steps)
    data = chimera.SampleDataset(samples(sizes))
    with tempfile.TemporaryDirectory() as out:
        run = Trainer(
            subject.options,
            (data, data.subset(np.arange(sizes.batch))),
            strategy={"name": variant, "local_steps": sizes.local_steps} if local else variant,
            workers=WORKERS,
            batch_size=sizes.batch,
            optimizer=OPTIMIZER,
            rounds=2 * warm_up + rounds,  # the last row includes the evaluation at the end
            log_every=warm_up,
            evaluate_every=10**9,
            out=Path(out) / "run",
        ).fit()
    rows = [row for row in run.rows if "loss" not in row]
    first, last = rows[0], rows[-1]
    tokens = last["tokens"] - first["tokens"]
    assert tokens == (last["samples"] - first["samples"]) * sizes.block, "a worker's tokens were not reported in time"
    return tokens / (last["seconds"] - first["seconds"])


def compare(name: str, subject: Subject, sizes: Sizes, *, turns: int, quick: bool) -> None:
    """Measure all variants in turn, and print their table."""
    found: dict[str, list[float]] = {variant: [] for variant in subject.variants}
    for _ in range(turns):
        for variant, values in found.items():
            plain = variant in PLAIN
            values.append(
                measure_plain(variant, name, quick=quick) if plain else measure_chimera(variant, subject, sizes)
            )
    medians = {variant: statistics.median(values) for variant, values in found.items()}
    per_token = flops_per_token(subject)
    print(
        f"\n{name}: {per_token / 1e6:.1f} M FLOPs per token, batch {sizes.batch} x {sizes.block} tokens per worker\n"
        f"{'':26}{'tokens/s':>12}{'GFLOP/s':>10}{'of independent':>16}{'of DDP':>9}{'spread':>9}"
    )
    for variant, value in medians.items():
        spread = (max(found[variant]) - min(found[variant])) / value
        ratios = f"{value / medians['independent']:16.2f}{value / medians['ddp']:9.2f}"
        print(f"{TITLES[variant]:26}{value:12,.0f}{value * per_token / 1e9:10.1f}{ratios}{spread:9.0%}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--models", nargs="+", choices=subjects(QUICK), default=list(subjects(QUICK)))
    parser.add_argument("--quick", action="store_true", help="small models and few steps: the figures mean nothing")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    sizes = QUICK if args.quick else FULL
    known = subjects(sizes)
    if args.worker:
        plain_worker(args.worker, known[args.models[0]], sizes, args.rank, args.port)
        return
    import peft
    import torch
    import transformers

    import chimera

    print(
        f"Python {platform.python_version()}, chimera {chimera.__version__}, torch {torch.__version__}, transformers "
        f"{transformers.__version__}, peft {peft.__version__}, {os.cpu_count()} processors, medians of {args.turns} turns"
        f"{'; --quick: the figures mean nothing' if args.quick else ''}"
    )
    for name in args.models:
        compare(name, known[name], sizes, turns=args.turns, quick=args.quick)


if __name__ == "__main__":
    main()

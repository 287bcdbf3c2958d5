"""Tokens per second of language models: Chimera on two cores, PyTorch DDP, Flower, and loops that never communicate.

- ``gpt``: a new GPT-2 of 10 million parameters, all trained, by ``all-reduce`` and by ``diloco``, which exchanges every 50
  steps.
- ``lora``: adapters of rank 8 on a frozen Llama of 21 million parameters, by ``all-reduce``.
- ``clients``: the same adapters, by ``fed-avg`` with two clients that take ten local steps a round and start each with a new
  optimizer: Chimera's engine ``local``, and Flower's simulation, whose processes on Ray keep the model between rounds. Both
  start from the same weights, read the same parts of the same text (the files ``docs/*.md`` as bytes) and send adapters only.
  Batches are drawn by different generators, so the held-out losses agree only roughly.

Each variant has two processes of one thread that compute, so that all get the same share of a busy machine; float32, AdamW,
and blocks of 128 tokens, random ones except for ``clients``; no dropout. Weights are new: speed does not depend on values. The
variants alternate. The table shows medians over the repetitions: tokens per second of both processes, FLOPs per second by the
formula of docs/how-to/language-models.md, and ratios to two independent loops (the upper limit) and to DDP over gloo. *busy* is
tokens per second of processor time of all processes, including driver and servers. Run it on an idle machine. On a busy
machine, only the last of these figures is meaningful::

    python benchmarks/language_model.py [--turns 3] [--models gpt lora clients] [--flower flower/bin/python] [--quick]

``--flower`` names the interpreter of a separate environment with the same versions of torch, transformers, peft and NumPy:
``python3 -m venv flower; flower/bin/pip install 'flwr[simulation]' torch==... transformers==... peft==... numpy==...``.

``--quick`` only tests that all variants run, with small models and few steps.
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
from flower.processor_time import processor_s

OPTIMIZER = {"name": "adamw", "lr": 1e-3}
DILOCO, FED_AVG, FLOWER = "diloco", "fed-avg", "flower"
PLAIN = {"independent": "two independent loops", "ddp": "PyTorch DDP, gloo"}
TITLES = {
    **PLAIN, "all-reduce": "Chimera all-reduce", DILOCO: "Chimera diloco", FED_AVG: "Chimera fed-avg", FLOWER: "Flower FedAvg"
}  # fmt: skip
TEXT = Path(__file__).parents[1] / "docs"
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


class Sizes(NamedTuple):
    """The sizes of a measurement. ``*_steps`` are local steps of a round, ``*_rounds`` the rounds that are measured."""

    gpt: dict[str, Any]
    llama: dict[str, Any]
    vocabulary: int
    block: int
    batch: int
    warm_up: int
    steps: int
    diloco_steps: int
    diloco_rounds: int
    client_steps: int
    client_rounds: int


FULL = Sizes(
    gpt={"n_layer": 6, "n_embd": 320, "n_head": 5},
    llama={"num_hidden_layers": 8, "hidden_size": 384, "intermediate_size": 1024, "num_attention_heads": 6},
    vocabulary=8192, block=128, batch=4, warm_up=4, steps=40, diloco_steps=50, diloco_rounds=2,
    client_steps=10, client_rounds=3,
)  # fmt: skip
QUICK = Sizes(
    gpt={"n_layer": 1, "n_embd": 32, "n_head": 2},
    llama={"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2},
    vocabulary=256, block=16, batch=2, warm_up=2, steps=6, diloco_steps=3, diloco_rounds=2,
    client_steps=2, client_rounds=2,
)  # fmt: skip


class Measured(NamedTuple):
    """Tokens per second of both processes, per second of processor time, and the held-out loss in nats per token, if known."""

    speed: float
    per_processor_s: float
    loss: float = float("nan")


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
        "clients": Subject({**new, "config": llama, "lora": lora}, ("independent", FED_AVG, FLOWER)),
    }


def block(rng: np.random.Generator, row: int, *, sizes: Sizes) -> Any:  # noqa: ARG001
    tokens = rng.integers(0, sizes.vocabulary, sizes.block + 1)
    return tokens[:-1], tokens[1:]


def samples(sizes: Sizes) -> Samples:
    return Samples(partial(block, sizes=sizes))


def blocks_of_text(sizes: Sizes, folder: Path) -> tuple[Any, Any]:
    """Return the blocks of the text, for training and held out. The folder gets the text."""
    from chimera.data.text_blocks import text_blocks

    text = folder / "text"
    text.write_bytes(b"".join(path.read_bytes() for path in sorted(TEXT.rglob("*.md"))))
    split = text_blocks(path=str(text), block=sizes.block, test_fraction=0.02)
    return split.train, split.test


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
            began, busy = time.perf_counter(), time.process_time()
        tokens, targets = next(batches)
        logits = model(input_ids=tokens, use_cache=False).logits
        loss = cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
    seconds, busy_s = time.perf_counter() - began, time.process_time() - busy
    dist.destroy_process_group()
    tokens = sizes.steps * sizes.batch * sizes.block
    print(json.dumps([tokens / seconds, tokens / busy_s]))


def measure_plain(variant: str, name: str, *, quick: bool) -> Measured:
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
    speeds, busy = zip(*(json.loads(each.communicate()[0].splitlines()[-1]) for each in processes), strict=True)
    return Measured(sum(speeds), statistics.harmonic_mean(busy))


def measure_chimera(variant: str, subject: Subject, sizes: Sizes) -> Measured:
    """Measure after the warm-up, which is the first round if a round has local steps."""
    import chimera
    from chimera.training.trainer import Trainer

    busy_s: list[float] = []  # after each row of the metrics

    class Busy(chimera.Callback):
        def on_progress(self, _: Any) -> None:
            busy_s.append(processor_s())

    random = chimera.SampleDataset(samples(sizes))
    data = random, random.subset(np.arange(sizes.batch))
    plans: dict[str, tuple[Any, int, int, dict[str, Any]]] = {
        "all-reduce": (variant, sizes.warm_up, sizes.steps, {}),
        DILOCO: ({"name": variant, "local_steps": sizes.diloco_steps}, 1, sizes.diloco_rounds, {}),
        FED_AVG: (
            {"name": variant, "local_steps": sizes.client_steps, "keep_state": False}, 1, sizes.client_rounds,
            {"partition": "contiguous"},
        ),
    }  # fmt: skip
    strategy, warm_up, rounds, options = plans[variant]
    with tempfile.TemporaryDirectory() as out:
        run = Trainer(
            subject.options,
            blocks_of_text(sizes, Path(out)) if variant == FED_AVG else data,
            strategy=strategy,
            batch_size=sizes.batch,
            optimizer=OPTIMIZER,
            rounds=2 * warm_up + rounds,  # the last row includes the evaluation at the end
            log_every=warm_up,
            evaluate_every=10**9,
            out=Path(out) / "run",
            workers=WORKERS,
            callbacks=[Busy()],
            **options,
        ).fit()
    rows = [row for row in run.rows if "loss" not in row]
    first, last = rows[0], rows[-1]
    tokens = last["tokens"] - first["tokens"]
    assert tokens == (last["samples"] - first["samples"]) * sizes.block, "a worker's tokens were not reported in time"
    assert len(busy_s) == len(run.rows), "a row was written without a call of on_progress"
    return Measured(
        tokens / (last["seconds"] - first["seconds"]),
        tokens / (busy_s[len(rows) - 1] - busy_s[0]),
        run.metrics["loss"],
    )


def measure_flower(python: str, subject: Subject, sizes: Sizes) -> Measured:
    """Measure Flower's simulation after its first round, from the weights and on the text of Chimera's clients."""
    from chimera.models.conversion import build_model

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options = {key: value for key, value in subject.options.items() if key != "name"}
        known: dict[str, Any] = {"input_shape": (sizes.block,), "outputs": 1, "task": "classification", "seed": 0}
        build_model("huggingface", options, **known).save_pretrained(folder / "adapter")  # as Trainer creates it
        for part, blocks in zip(("train", "test"), blocks_of_text(sizes, folder), strict=True):
            tokens, following = blocks.take(np.arange(len(blocks)))
            np.save(folder / f"{part}.npy", np.hstack([tokens, following[:, -1:]]))
        script = Path(__file__).parent / "flower" / "language_model.py"
        numbers = WORKERS, sizes.client_steps, 2 + sizes.client_rounds, sizes.batch
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
        quiet["RAY_worker_niceness"] = "0"  # the default, 15, yields to any other process; Chimera's workers have 0
        quiet["PYTHONPATH"] = str(script.parent)  # of Flower's processes; it replaces any given value
        process = subprocess.run(
            [python, script, folder, *map(str, numbers), str(OPTIMIZER["lr"])],
            env={**os.environ, **quiet}, capture_output=True, text=True,
        )  # fmt: skip
    if process.returncode:
        sys.exit(f"Flower: {process.stderr[-2000:]}")
    found = json.loads(process.stdout.splitlines()[-1])
    print("Flower's environment:", found["versions"], flush=True)
    if OPTIMIZER["lr"]:
        assert found["loss"] < found["loss_before"], f"Flower's clients learned nothing: {found}"
    return Measured(found["tokens_s"], found["tokens_processor_s"], found["loss"])


def compare(name: str, subject: Subject, sizes: Sizes, *, turns: int, flower: str | None, quick: bool) -> None:
    """Measure all variants in turn, and print their table."""
    found: dict[str, list[Measured]] = {each: [] for each in subject.variants if each != FLOWER or flower}
    for _ in range(turns):
        for variant, values in found.items():
            if variant in PLAIN:
                values.append(measure_plain(variant, name, quick=quick))
            elif variant == FLOWER:
                values.append(measure_flower(str(flower), subject, sizes))
            else:
                values.append(measure_chimera(variant, subject, sizes))
    medians = {variant: statistics.median(each.speed for each in values) for variant, values in found.items()}
    per_token = flops_per_token(subject)
    print(
        f"\n{name}: {per_token / 1e6:.1f} M FLOPs per token, batch {sizes.batch} x {sizes.block} tokens per worker\n"
        f"{'':26}{'tokens/s':>12}{'GFLOP/s':>10}{'of independent':>16}{'of DDP':>9}{'spread':>9}"
        f"{'per busy s':>12}{'spread':>9}{'held-out loss':>16}"
    )
    for variant, value in medians.items():
        speeds, busy, losses = zip(*found[variant], strict=True)
        spread, busy_spread = ((max(each) - min(each)) / statistics.median(each) for each in (speeds, busy))
        ratios = f"{value / medians['independent']:16.2f}{value / medians.get('ddp', float('nan')):9.2f}"
        loss = statistics.median(losses)
        line = f"{TITLES[variant]:26}{value:12,.0f}{value * per_token / 1e9:10.1f}{ratios}{spread:9.0%}"
        line += f"{statistics.median(busy):12,.0f}{busy_spread:9.0%}{loss:16.3f}"
        print(line.replace("nan", "   "), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--models", nargs="+", choices=subjects(QUICK), default=list(subjects(QUICK)))
    parser.add_argument("--flower", metavar="PYTHON", help="the interpreter of the environment with Flower")
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
        compare(name, known[name], sizes, turns=args.turns, flower=args.flower, quick=args.quick)


if __name__ == "__main__":
    main()

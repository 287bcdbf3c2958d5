"""Plain loops of `gpu`: what the same training takes without Chimera."""

from __future__ import annotations

import time
import warnings
from typing import Any, NamedTuple

import numpy as np

from data_parallel import arrays, build

LORA = {"r": 8, "alpha": 16, "targets": ["q_proj", "v_proj"]}
PRECISIONS = {"fp32": None, "bf16-mixed": "bfloat16", "fp16-mixed": "float16"}


class Sizes(NamedTuple):
    """The sizes of a measurement; ``steps`` are steps to warm up, and to measure."""

    steps: dict[str, tuple[int, int]]
    llama: dict[str, int]
    vocabulary: int
    block: int
    batch: int
    lora_steps: tuple[int, int]
    codec_elements: int
    repeats: int


FULL = Sizes(
    {"small": (200, 1000), "large": (5, 40)},
    {"num_hidden_layers": 12, "hidden_size": 768, "intermediate_size": 2048, "num_attention_heads": 12},
    vocabulary=32_000, block=512, batch=8, lora_steps=(5, 40), codec_elements=25_000_000, repeats=9,
)  # fmt: skip
QUICK = Sizes(
    {"small": (4, 8), "large": (1, 2)},
    {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2},
    vocabulary=256, block=16, batch=2, lora_steps=(2, 4), codec_elements=250_000, repeats=2,
)  # fmt: skip


class Clock:
    """The time of steps after the warm-up."""

    def __init__(self, warm_up: int) -> None:
        self._left, self._began = warm_up, 0.0

    def step(self) -> None:
        """Count a step that begins."""
        import torch

        if self._left == 0:
            torch.cuda.synchronize()
            self._began = time.perf_counter()
        self._left -= 1

    def seconds(self) -> float:
        """Return the seconds since the first step that counts."""
        import torch

        torch.cuda.synchronize()
        return time.perf_counter() - self._began


def plain_network(network: str, sizes: Sizes, batch: int, rank: int, backend: str | None, hook: Any) -> float:
    """Train a network in a plain loop, under DDP if there is a backend; return samples per second of this process."""
    import torch
    import torch.distributed as dist

    model: Any = build(network).cuda()
    if backend is not None:
        model = torch.nn.parallel.DistributedDataParallel(model)
    if hook is not None:
        import chimera

        options = dict(hook)
        model.register_comm_hook(*chimera.ddp.hook(options.pop("codec"), **options))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, targets = arrays()
    order = np.random.default_rng(rank).permutation(len(inputs))
    warm_up, steps = sizes.steps[network]
    dist.barrier()
    clock = Clock(warm_up)
    for step in range(warm_up + steps):
        clock.step()
        rows = order[step * batch % (len(inputs) - batch) :][:batch]
        own, wanted = (torch.from_numpy(array[rows]).cuda() for array in (inputs, targets))
        loss = torch.nn.functional.cross_entropy(model(own), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return steps * batch / clock.seconds()


def plain_language(sizes: Sizes, precision: str, *, lora: bool) -> float:
    """Train a new Llama, or adapters of it with peft, in a plain loop; return tokens per second."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    warnings.filterwarnings("ignore", category=FutureWarning)  # of transformers, about peft's use of it
    model: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model(**llama(sizes)))
    if lora:
        options = {"r": LORA["r"], "lora_alpha": LORA["alpha"], "target_modules": LORA["targets"]}
        model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **options))
    model.cuda().train()
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-3)
    scaler = torch.amp.GradScaler("cuda", enabled=precision == "fp16-mixed")
    half = PRECISIONS[precision]
    kind = None if half is None else getattr(torch, half)
    tokens, following = blocks(sizes)
    warm_up, steps = sizes.lora_steps
    clock = Clock(warm_up)
    for step in range(warm_up + steps):
        clock.step()
        begin = step * sizes.batch % (len(tokens) - sizes.batch)
        own, wanted = (torch.from_numpy(array[begin : begin + sizes.batch]).cuda() for array in (tokens, following))
        with torch.autocast("cuda", kind, enabled=kind is not None):
            logits = model(input_ids=own, use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return steps * sizes.batch * sizes.block / clock.seconds()


def llama(sizes: Sizes) -> dict[str, Any]:
    common = {"vocab_size": sizes.vocabulary, "max_position_embeddings": sizes.block, "tie_word_embeddings": True}
    return {"model_type": "llama", **sizes.llama, **common}


def blocks(sizes: Sizes) -> tuple[Any, Any]:
    """Return random tokens, and the next tokens; shape (rows, block) each."""
    tokens = np.random.default_rng(0).integers(0, sizes.vocabulary, (256, sizes.block + 1))
    return np.ascontiguousarray(tokens[:, :-1]), np.ascontiguousarray(tokens[:, 1:])

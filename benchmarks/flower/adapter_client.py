"""A client of Flower that trains the adapters of `benchmarks/language_model.py`.

Flower's processes import this module, so that each process reads the model once: Flower sends objects that a script defines
again with every call. The options of a round are in its message.
"""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

client = ClientApp()


@cache
def network(folder: str) -> Any:
    """Return the base with its adapter, which a process reads once."""
    warnings.filterwarnings("ignore", category=FutureWarning)  # of transformers, about peft's use of it
    torch.set_num_threads(1)
    base = AutoModelForCausalLM.from_pretrained(Path(folder) / "adapter" / "base")
    return PeftModel.from_pretrained(base, Path(folder) / "adapter", is_trainable=True)


@cache
def blocks_of(folder: str) -> Any:
    """Return the blocks for training of all clients, which a process maps once."""
    return np.load(Path(folder) / "train.npy", mmap_mode="r")


def loss_of(model: Any, blocks: Any) -> torch.Tensor:
    """Return the mean loss of blocks of shape (n, tokens + 1)."""
    tokens = torch.from_numpy(blocks.astype(np.int64))
    logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
    return cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


@client.train()
def train(message: Message, context: Context) -> Message:
    """Take the local steps of a round."""
    options, place = message.content["config"], int(context.node_config["partition-id"])
    folder, steps, batch = str(options["folder"]), int(options["steps"]), int(options["batch"])
    model = network(folder).train()
    set_peft_model_state_dict(model, message.content["arrays"].to_torch_state_dict())
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=float(options["rate"]))
    own = np.array_split(blocks_of(folder), int(options["clients"]))[place]
    rng, loss = np.random.default_rng([place, int(options["server-round"])]), 0.0
    for _ in range(steps):
        current = loss_of(model, own[rng.choice(len(own), batch, replace=False)])
        optimizer.zero_grad()
        current.backward()
        optimizer.step()
        loss = current.item()
    metrics = MetricRecord({"num-examples": steps * batch, "loss": loss})
    arrays = ArrayRecord(get_peft_model_state_dict(model))
    return Message(content=RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

"""The clients of `benchmarks/language_model.py` in Flower's simulation; that script runs this one in Flower's environment.

    FLOWER/bin/python benchmarks/flower/language_model.py FOLDER CLIENTS STEPS ROUNDS BATCH RATE

``FOLDER`` holds the adapter with its base, and the blocks of tokens for training and evaluation. The last line of the output
is JSON: the versions, the held-out loss, and the tokens per second from the end of the first to that of the last but one round.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

FOLDER, RATE = Path(sys.argv[1]), float(sys.argv[6])
CLIENTS, STEPS, ROUNDS, BATCH = map(int, sys.argv[2:6])
client, server = ClientApp(), ServerApp()
ends_s: list[float] = []
final: list[ArrayRecord] = []


@cache
def network() -> Any:
    """Return the base with its adapter, which a process reads once."""
    warnings.filterwarnings("ignore", category=FutureWarning)  # of transformers, about peft's use of it
    torch.set_num_threads(1)
    base = AutoModelForCausalLM.from_pretrained(FOLDER / "adapter" / "base")
    return PeftModel.from_pretrained(base, FOLDER / "adapter", is_trainable=True)


def loss_of(model: Any, blocks: Any) -> torch.Tensor:
    """Return the mean loss of blocks of shape (n, tokens + 1)."""
    tokens = torch.from_numpy(blocks.astype(np.int64))
    logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
    return cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


@client.train()
def train(message: Message, context: Context) -> Message:
    """Take the local steps of a round."""
    model, place = network().train(), int(context.node_config["partition-id"])
    set_peft_model_state_dict(model, message.content["arrays"].to_torch_state_dict())
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATE)
    own = np.array_split(np.load(FOLDER / "train.npy"), CLIENTS)[place]
    rng, loss = np.random.default_rng([place, int(message.content["config"]["server-round"])]), 0.0
    for _ in range(STEPS):
        current = loss_of(model, own[rng.choice(len(own), BATCH, replace=False)])
        optimizer.zero_grad()
        current.backward()
        optimizer.step()
        loss = current.item()
    metrics = MetricRecord({"num-examples": STEPS * BATCH, "loss": loss})
    arrays = ArrayRecord(get_peft_model_state_dict(model))
    return Message(content=RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


class Timed(FedAvg):
    """A strategy that records when each round ends."""

    def aggregate_train(self, *given: Any) -> Any:
        """Record the time (a method of Flower's strategies)."""
        result = super().aggregate_train(*given)
        ends_s.append(time.perf_counter())
        return result


@server.main()
def serve(grid: Grid, _: Context) -> None:
    """Run the rounds."""
    strategy = Timed(fraction_train=1.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS, fraction_evaluate=0.0)
    arrays = ArrayRecord(get_peft_model_state_dict(network()))
    final.append(strategy.start(grid=grid, initial_arrays=arrays, num_rounds=ROUNDS).arrays)


if __name__ == "__main__":
    run_simulation(
        server_app=server,
        client_app=client,
        num_supernodes=CLIENTS,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"address": "local"}},
    )
    model, test = network().eval(), np.load(FOLDER / "test.npy")
    set_peft_model_state_dict(model, final[0].to_torch_state_dict())
    with torch.no_grad():
        sums = [loss_of(model, blocks).item() * len(blocks) for blocks in np.array_split(test, max(len(test) // 16, 1))]
    tokens = (ROUNDS - 2) * CLIENTS * STEPS * BATCH * (test.shape[1] - 1)
    found = {
        "versions": {name: version(name) for name in ("flwr", "ray", "torch", "transformers", "peft", "numpy")},
        "loss": sum(sums) / len(test),
        "tokens_s": tokens / (ends_s[-2] - ends_s[0]),
    }
    print(json.dumps(found))

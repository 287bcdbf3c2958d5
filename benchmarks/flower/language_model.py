"""The clients of `benchmarks/language_model.py` in Flower's simulation; that script runs this one in Flower's environment.

    PYTHONPATH=benchmarks/flower FLOWER/bin/python benchmarks/flower/language_model.py FOLDER CLIENTS STEPS ROUNDS BATCH RATE

``FOLDER`` holds the adapter with its base, and the blocks of tokens for training and evaluation. The last line of the output is
JSON: the versions, the held-out loss before and after, and the tokens per second, of wall and of processor time, from the end
of the first to that of the last but one round. A failed client ends the script with an error: Flower continues without it, and
such rounds are too fast.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from adapter_client import client, loss_of, network
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from peft import get_peft_model_state_dict, set_peft_model_state_dict
from processor_time import processor_s

FOLDER, RATE = sys.argv[1], float(sys.argv[6])
CLIENTS, STEPS, ROUNDS, BATCH = map(int, sys.argv[2:6])
server = ServerApp()
ends_s: list[tuple[float, float]] = []  # of rounds: wall time, and processor time of all processes
failures: list[str] = []
final: list[ArrayRecord] = []


class Timed(FedAvg):
    """A strategy that records when each round ends, and which clients failed."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        """Record the time and the failures (a method of Flower's strategies)."""
        answers = list(replies)
        good = sum(not answer.has_error() for answer in answers)
        if good != CLIENTS:
            failures.append(f"round {server_round}: {good} of {CLIENTS} clients answered")
        result = super().aggregate_train(server_round, answers)
        ends_s.append((time.perf_counter(), processor_s()))
        return result


@server.main()
def serve(grid: Grid, _: Context) -> None:
    """Run the rounds."""
    strategy = Timed(fraction_train=1.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS, fraction_evaluate=0.0)
    options = {"folder": FOLDER, "clients": CLIENTS, "steps": STEPS, "batch": BATCH, "rate": RATE}
    arrays = ArrayRecord(get_peft_model_state_dict(network(FOLDER)))
    done = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=ROUNDS, train_config=ConfigRecord(options))
    final.append(done.arrays)


def held_out_loss() -> float:
    """Return the mean loss of the held-out blocks at the present weights."""
    model, test = network(FOLDER).eval(), np.load(Path(FOLDER) / "test.npy")
    with torch.no_grad():
        sums = [loss_of(model, blocks).item() * len(blocks) for blocks in np.array_split(test, max(len(test) // 16, 1))]
    return float(sum(sums) / len(test))


if __name__ == "__main__":
    first_loss = held_out_loss()
    run_simulation(
        server_app=server,
        client_app=client,
        num_supernodes=CLIENTS,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"address": "local"}},
    )
    if failures or len(ends_s) != ROUNDS:
        sys.exit("; ".join(failures) or f"{len(ends_s)} of {ROUNDS} rounds ended")
    set_peft_model_state_dict(network(FOLDER), final[0].to_torch_state_dict())
    tokens = (ROUNDS - 2) * CLIENTS * STEPS * BATCH * (np.load(Path(FOLDER) / "test.npy").shape[1] - 1)
    wall_s, busy_s = (after - before for after, before in zip(ends_s[-2], ends_s[0], strict=True))
    found = {
        "versions": {name: version(name) for name in ("flwr", "ray", "torch", "transformers", "peft", "numpy")},
        "loss_before": first_loss,
        "loss": held_out_loss(),
        "tokens_s": tokens / wall_s,
        "tokens_processor_s": tokens / busy_s,
    }
    print(json.dumps(found))

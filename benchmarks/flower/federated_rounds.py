"""The clients of `benchmarks/federated_rounds.py` in Flower's simulation; that script runs this one in Flower's environment.

    FLOWER/bin/python benchmarks/flower/federated_rounds.py CLIENTS SAMPLED ROUNDS PARAMETERS

The last line of the output is JSON: the versions, the seconds until the first round, and the rounds per second after it.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

CLIENTS, SAMPLED, ROUNDS, PARAMETERS = map(int, sys.argv[1:])
client, server = ClientApp(), ServerApp()
ends_s: list[float] = []


class Timed(FedAvg):
    """A strategy that records when each round ends."""

    def aggregate_train(self, *given: Any) -> Any:
        """Record the time (a method of Flower's strategies)."""
        result = super().aggregate_train(*given)
        ends_s.append(time.perf_counter())
        return result


@client.train()
def train(message: Message, _: Context) -> Message:
    """Return the received model."""
    metrics = MetricRecord({"num-examples": 1, "loss": 0.0})
    return Message(content=RecordDict({"arrays": message.content["arrays"], "metrics": metrics}), reply_to=message)


@server.main()
def serve(grid: Grid, _: Context) -> None:
    """Run the rounds."""
    strategy = Timed(
        fraction_train=SAMPLED / CLIENTS,
        min_train_nodes=SAMPLED,
        min_available_nodes=CLIENTS,
        fraction_evaluate=0.0,
    )
    strategy.start(grid=grid, initial_arrays=ArrayRecord([np.zeros(PARAMETERS, np.float32)]), num_rounds=ROUNDS)


if __name__ == "__main__":
    began_s = time.perf_counter()
    run_simulation(
        server_app=server,
        client_app=client,
        num_supernodes=CLIENTS,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"address": "local"}},
    )
    found = {
        "versions": {name: version(name) for name in ("flwr", "ray", "numpy")},
        "first_s": ends_s[0] - began_s,
        "rounds_s": (len(ends_s) - 1) / (ends_s[-1] - ends_s[0]),
    }
    print(json.dumps(found))

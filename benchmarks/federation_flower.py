"""Chimera's federation and Flower's deployment mode on one machine: the time to a first round, and rounds per second.

Both train the same MLP (64 - 32 - 10, tanh) on the digits of scikit-learn in equal parts, by FedAvg with 10 local steps of 32
rows, over TLS. The test rows are all rows that no node has. Chimera: ``chimera hub up``, and ``chimera node serve`` with a
policy, so nodes and driver have certificates, and each node keeps a ledger and an audit log. Flower: ``flower-superlink`` and
``flower-supernode`` with TLS, without authentication of nodes, ``--isolation subprocess`` (its default). Flower starts a
process for each message to a node in both of its modes of isolation; messages for evaluation are off, and SuperExec asks for
tasks every 0.1 s instead of every second. The federations are started in turn, so that only one of them runs::

    python -m venv flower && flower/bin/pip install flwr torch
    python benchmarks/federation_flower.py start --flower flower/bin/python [--turns 3]
    python benchmarks/federation_flower.py rounds --flower flower/bin/python [--turns 2] [--nodes 10] [--rounds 5]

``start`` runs the commands of both tutorials for two nodes, from an empty folder to the end of the first round, without
installation. ``rounds`` also shows the accuracy after the same number of rounds, which must agree within a few percent.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

TEST_ROWS = 360
LONG = 20
"""Rounds of Chimera for the rate: this many times those for the accuracy."""

APP = {
    "pyproject.toml": """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "digits"
version = "1.0.0"
description = "Digits"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "benchmark"
[tool.flwr.app.components]
serverapp = "digits.server:app"
clientapp = "digits.client:app"
[tool.flwr.app.config]
rounds = 1
nodes = 2
out = ""
""",
    "digits/__init__.py": "",
    "digits/server.py": """
import json, time
import torch
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()

class Timed(FedAvg):
    def __init__(self, **options):
        super().__init__(**options)
        self.times = []

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        assert not any(reply.has_error() for reply in replies)
        made = super().aggregate_train(server_round, replies)
        self.times.append(time.time())
        return made

@app.main()
def main(grid, context):
    config = context.run_config
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Tanh(), torch.nn.Linear(32, 10))
    nodes = int(config["nodes"])
    strategy = Timed(fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes)
    arrays = ArrayRecord(network.state_dict())
    done = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=int(config["rounds"]))
    torch.save(done.arrays.to_torch_state_dict(), config["out"] + ".pt")
    with open(config["out"], "w") as file:
        json.dump(strategy.times, file)
""",
    "digits/client.py": """
import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.train()
def train(message, context):
    torch.set_num_threads(1)
    held = np.load(context.node_config["data"])
    inputs, targets = torch.tensor(held["x"]), torch.tensor(held["y"])
    network = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Tanh(), torch.nn.Linear(32, 10))
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    order = torch.randperm(len(inputs))
    for step in range(10):
        rows = order[torch.arange(step * 32, step * 32 + 32) % len(inputs)]
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(inputs[rows]), targets[rows]).backward()
        optimizer.step()
    content = {"arrays": ArrayRecord(network.state_dict()), "metrics": MetricRecord({"num-examples": len(inputs)})}
    return Message(content=RecordDict(content), reply_to=message)
""",
}
POLICY = """
approval = "automatic"
secure_aggregation = "optional"
requesters = { names = ["driver"] }
strategies.fed-avg = { local_steps = { most = 20 } }
models.mlp = { hidden = "any" }
privacy = { min_noise = 0, epsilon_per_requester = inf, epsilon_in_all = inf }
"""


class Found(NamedTuple):
    """A run: numbers of rounds, each with the time of its end in seconds, and the accuracy on the test rows."""

    times: list[tuple[int, float]]
    accuracy: float

    @property
    def rate(self) -> float:
        """Rounds per second, without the first ones and the start of the run."""
        (first, began_s), (last, ended_s) = self.times[0], self.times[-1]
        return (last - first) / (ended_s - began_s)


class Started:
    """Processes that end with their children, and the commands that a user would type."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.commands = folder, 0
        self._processes: list[subprocess.Popen[str]] = []

    def run(self, *command: Any, **options: Any) -> str:
        """Run a command, and return its output."""
        self.commands += 1
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=self.folder, **options)
        if done.returncode:
            raise SystemExit(f"{command}: {done.stdout[-800:]}{done.stderr[-800:]}")
        return done.stdout

    def keep(self, *command: Any, ready: str, **options: Any) -> str:
        """Start a command, and return its first line that contains ``ready``."""
        self.commands += 1
        log = self.folder / f"{len(self._processes)}.log"
        with log.open("w") as out:
            self._processes.append(
                subprocess.Popen(
                    list(map(str, command)), stdout=out, stderr=out, text=True, cwd=self.folder, start_new_session=True,
                    **options,
                )
            )  # fmt: skip
        return "" if not ready else line_with(log, ready, self._processes[-1])

    def end(self) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def line_with(log: Path, text: str, process: subprocess.Popen[str], timeout_s: float = 120.0) -> str:
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s and process.poll() is None:
        for line in log.read_text().splitlines():
            if text in line:
                return line
        time.sleep(0.02)
    raise SystemExit(f"{process.args} is not ready: {log.read_text()[-800:]}")


def free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


def digits() -> tuple[Any, Any]:
    """Return inputs from 0 to 1, shape (1797, 64), and classes, in an order of their own."""
    import numpy as np
    from sklearn.datasets import load_digits

    held = load_digits()
    order = np.random.default_rng(0).permutation(len(held.target))
    return (held.data[order] / 16).astype(np.float32), held.target[order]


def accuracy(layers: list[Any]) -> float:
    """Return the share of test rows that the MLP with these weights and biases predicts correctly."""
    import numpy as np

    inputs, targets = (each[:TEST_ROWS] for each in digits())
    first, first_bias, second, second_bias = (np.asarray(each) for each in layers)
    logits = np.tanh(inputs @ first.T + first_bias) @ second.T + second_bias
    return float((logits.argmax(1) == targets).mean())


@contextlib.contextmanager
def chimera_nodes(folder: Path, nodes: int) -> Iterator[Started]:
    """Run a hub and nodes with the commands of docs/how-to/federation.md."""
    import pandas as pd

    started, command = Started(folder), [sys.executable, "-m", "chimera"]
    inputs, targets = digits()
    (folder / "policy.toml").write_text(POLICY)
    for place in range(nodes):
        rows = slice(TEST_ROWS + place, None, nodes)
        named = pd.DataFrame(inputs[rows], columns=[f"p{column:02}" for column in range(64)])
        named.assign(digit=[f"d{each}" for each in targets[rows]]).to_csv(folder / f"{place}.csv", index=False)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    try:
        started.keep(*command, "hub", "up", "--folder", "hub", "--port", 0, ready="serves at", env=environment)
        for name in [*(f"node{place}" for place in range(nodes)), "driver"]:
            role = ["--requester"] if name == "driver" else []
            line = started.run(*command, "hub", "invite", name, *role, "--folder", "hub", env=environment)
            started.run(*command, *line.split()[1:], "--folder", name, env=environment)
        for place in range(nodes):
            own = [
                "--data",
                f"{place}.csv",
                "--policy",
                "policy.toml",
                "--folder",
                f"node{place}",
                "--test-fraction",
                0,
            ]
            started.keep(*command, "node", "serve", *own, ready="", env=environment)
        yield started
    finally:
        started.end()


def chimera_run(folder: Path, nodes: int, count: int) -> Found:
    import chimera
    from chimera.training.progress.callback import Callback

    times: list[tuple[int, float]] = []

    class Clock(Callback):
        def on_progress(self, progress: Any) -> None:
            times.append((progress.rounds, time.time()))

    engine = {
        "name": "federation",
        "nodes": [f"node{place}" for place in range(nodes)],
        "identity": str(folder / "driver"),
    }
    run = chimera.train(
        {"name": "mlp", "hidden": [32]}, {"name": "nodes", "standardize": False}, engine=engine, workers=nodes, rounds=count,
        strategy={"name": "fed-avg", "local_steps": 10}, batch_size=32, optimizer={"name": "sgd", "lr": 0.5},
        callbacks=[Clock()], evaluate_every=count, log_every=min(count, 10), out=tempfile.mkdtemp(dir=folder),
    )  # fmt: skip
    return Found(times, accuracy(layers_of(run)))


def layers_of(run: Any) -> list[Any]:
    return [parameter.detach().numpy() for parameter in run.model.parameters()]


@contextlib.contextmanager
def flower_nodes(folder: Path, nodes: int, python: Path) -> Iterator[Started]:
    """Run a SuperLink and SuperNodes with the commands of Flower's guides to its deployment runtime and to TLS."""
    import numpy as np

    started, bin_, port = Started(folder), python.parent, free_port()
    for name, text in APP.items():
        (folder / "app" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "app" / name).write_text(text)
    inputs, targets = digits()
    for place in range(nodes):
        rows = slice(TEST_ROWS + place, None, nodes)
        np.savez(folder / f"{place}.npz", x=inputs[rows], y=targets[rows])
    environment = flower_environment(folder, bin_)
    ca, certificate, key = (folder / name for name in ("ca.pem", "server.pem", "server.key"))
    served = ["--ssl-ca-certfile", ca, "--ssl-certfile", certificate, "--ssl-keyfile", key]
    (folder / "home").mkdir()
    try:
        started.run("bash", "-c", CERTIFICATES)
        text = f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{port}"\nroot-certificates = "{ca}"\n'
        (folder / "home" / "config.toml").write_text(text)
        started.commands += 1
        more = ["--disable-runtime-dependency-installation", "--port", port]
        started.keep(bin_ / "flower-superlink", *served, *more, ready="", env=environment)
        line_connects(port)
        for place in range(nodes):
            own = ["--superlink", f"127.0.0.1:{port}", "--port", free_port(), "--root-certificates", ca]
            config = f'data="{folder / f"{place}.npz"}"'
            started.keep(bin_ / "flower-supernode", *own, *served, "--node-config", config, ready="", env=environment)
        yield started
    finally:
        started.end()


CERTIFICATES = """set -e
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -keyout ca.key -out ca.pem -subj /CN=ca
openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout server.key -out server.csr -subj /CN=localhost
printf "subjectAltName=DNS:localhost,IP:127.0.0.1" > names
openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out server.pem -days 30 -extfile names
"""


def flower_environment(folder: Path, bin_: Path) -> dict[str, str]:
    own = {"PATH": f"{bin_}:{os.environ['PATH']}", "FLWR_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
    quiet = {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    }
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | own | quiet


def line_connects(port: int) -> None:
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.02)


def flower_run(started: Started, nodes: int, count: int, python: Path) -> Found:
    folder, environment = started.folder, flower_environment(started.folder, python.parent)
    out = folder / f"out{time.time_ns()}"
    config = f'rounds={count} nodes={nodes} out="{out}"'
    started.run(python.parent / "flwr", "run", "app", "here", "--run-config", config, "--stream", env=environment)
    if not out.exists():
        raise SystemExit("Flower's run failed")
    code = f"import torch, json; print(json.dumps([each.tolist() for each in torch.load('{out}.pt').values()]))"
    layers = json.loads(subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout)
    return Found(list(enumerate(json.loads(out.read_text()), 1)), accuracy(layers))


def start(turns: int, python: Path) -> None:
    took: dict[str, list[float]] = {"chimera": [], "flower": []}
    commands = dict.fromkeys(took, 0)
    for _ in range(turns):
        with tempfile.TemporaryDirectory() as name:
            began_s = time.time()
            with flower_nodes(Path(name), 2, python) as started:
                took["flower"].append(flower_run(started, 2, 1, python).times[0][1] - began_s)
                commands["flower"] = started.commands
        with tempfile.TemporaryDirectory() as name:
            began_s = time.time()
            with chimera_nodes(Path(name), 2) as started:
                (Path(name) / "experiment.toml").write_text(EXPERIMENT)
                started.run(sys.executable, "-m", "chimera", "train", "experiment.toml")
                took["chimera"].append(time.time() - began_s)
                commands["chimera"] = started.commands
    for who, values in took.items():
        rounded = [round(value, 1) for value in values]
        print(f"{who:8} {commands[who]:3} commands, {statistics.median(values):6.1f} s to the first round  {rounded}")
    print(load())


EXPERIMENT = """
engine = { name = "federation", identity = "driver", nodes = ["node0", "node1"] }
strategy = { name = "fed-avg", local_steps = 10 }
model = { name = "mlp", hidden = [32] }
data = { standardize = false }
train = { workers = 2, rounds = 1, batch_size = 32, optimizer = { name = "sgd", lr = 0.5 } }
"""


def rounds(turns: int, nodes: int, count: int, python: Path) -> None:
    rates: dict[str, list[float]] = {"chimera": [], "flower": []}
    accuracies: dict[str, list[float]] = {name: [] for name in rates}
    for _ in range(turns):
        with tempfile.TemporaryDirectory() as name, flower_nodes(Path(name), nodes, python) as started:
            found = flower_run(started, nodes, count, python)
            rates["flower"].append(found.rate)
            accuracies["flower"].append(found.accuracy)
        with tempfile.TemporaryDirectory() as name, chimera_nodes(Path(name), nodes):
            accuracies["chimera"].append(chimera_run(Path(name), nodes, count).accuracy)
            rates["chimera"].append(chimera_run(Path(name), nodes, LONG * count).rate)
    for who, values in rates.items():
        right = [round(value, 3) for value in accuracies[who]]
        shown = f"{statistics.median(values):8.3f} rounds/s  {[round(value, 3) for value in values]}"
        print(f"{who:8} {shown}, accuracy after {count} rounds {right}")
    ratio = statistics.median(c / f for c, f in zip(rates["chimera"], rates["flower"], strict=True))
    print(f"{nodes} nodes: Chimera does {ratio:.0f} times as many rounds; {load()}")


def load() -> str:
    return f"load {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["start", "rounds"])
    parser.add_argument("--flower", type=Path, help="Python of an environment with flwr and torch")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    python = None if given.flower is None else given.flower.absolute()
    code = "import flwr, torch; print(flwr.__version__)"
    asked = None if python is None else subprocess.run([python, "-c", code], capture_output=True, text=True)
    if python is None or asked is None or asked.returncode:
        print("skipped: give --flower, the Python of an environment with flwr and torch (pip install flwr torch)")
        return
    print(f"Flower {asked.stdout.split()[-1]}")
    if given.command == "start":
        start(given.turns, python)
    else:
        rounds(given.turns, given.nodes, given.rounds, python)


if __name__ == "__main__":
    main()

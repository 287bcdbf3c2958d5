"""Rounds over a hub against rounds of engine ``http``, and the cost of nodes that are only connected.

``rounds``: three nodes train an MLP by FedAvg, with 10 local steps of 32 samples. The same code of nodes runs behind a web
server (engine ``http``, in clear), behind a hub (engine ``federation``, mutual TLS), and behind a hub with the gate of a real
node: a policy, its ledger and its audit log, on the disk of ``--folder``. The three variants alternate; the table shows medians
of rounds per second, and the processor time of a round in driver, hub and nodes. It also has the ratios of the time and of the
processor time of a round to those of engine ``http`` in the same turn. ``idle``: nodes that are connected to a hub and have no
calls; the table shows memory and processor time of the hub.
Run it on an idle machine::

    python benchmarks/federation.py rounds [--turns 5] [--rounds 200] [--hidden 64] [--noise 2] [--checkpoint-every 10]
    python benchmarks/federation.py idle [--nodes 1000] [--seconds 60]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

NODES = ("a", "b", "c")
ROWS = 130
STRATEGY = {"name": "fed-avg", "local_steps": 10}
KINDS = {"http": "http", "federation": "open", "with policy": "gated"}
"""The columns, and the nodes of each."""
POLICY = """
approval = "automatic"
secure_aggregation = "refused"
requesters = { names = ["driver"] }
strategies.fed-avg = { local_steps = "any" }
models.mlp = { hidden = "any" }
privacy = { min_noise = 0, epsilon_per_requester = inf, epsilon_in_all = inf }
"""


class Process:
    """A process that prints a line when it is ready."""

    def __init__(self, *command: Any, threads: int = 1) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *map(str, command)],
            env=os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if not line:
            raise SystemExit("a process has ended")
        return line

    def spent_s(self) -> float:
        """Return the processor time of the process."""
        import psutil

        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)


def worker(folder: str, name: str, hidden: str) -> Any:
    from chimera.nodes.settings import read_settings
    from chimera.nodes.workers import TorchWorker

    own = read_settings(train_data=Path(folder) / "data", worker_name=name, workers_port=0)
    return TorchWorker("mlp", options={"hidden": [int(hidden)]}, settings=own), own


def serve_http(folder: str, name: str, hidden: str) -> None:
    from chimera.web.app import serve

    made, own = worker(folder, name, hidden)
    app = made.app()
    serve(
        app,
        host="127.0.0.1",
        port=0,
        settings=own,
        on_started=lambda: print(f"http://127.0.0.1:{app.state.address[1]}"),
    )


def serve_node(folder: str, name: str, hidden: str, noise: str) -> None:
    from chimera.engines.federation.credentials import Credentials
    from chimera.federation.node.service import Service, serve
    from chimera.federation.policy.requests import Allowed

    class AllowAll:
        def request(self, *call):  # noqa: ARG002
            return Allowed()

        def answer(self, *call):  # noqa: ARG002
            return Allowed()

    made, _ = worker(folder, name.partition("-")[2], hidden)
    own = Path(folder) / name
    gate = gate_of(own, int(hidden), float(noise)) if name.startswith("gated") else AllowAll()
    serve(Service(Credentials.read(own, "node"), made.actors(), gate, lambda: print("connected")))


def gate_of(folder: Path, hidden: int, noise: float) -> Any:
    """Return the gate of a node. The driver has test data and so declares no settings; the node adds them."""
    from chimera.core.toml import read_toml
    from chimera.federation.policy.gate import Gate
    from chimera.federation.policy.policy import Policy
    from chimera.federation.policy.requests import Call, Decision, Requester
    from chimera.federation.policy.rules import START

    settings = {"strategy": STRATEGY, "model": {"name": "mlp", "hidden": [hidden]}, "rounds": 1_000_000, "nodes": 3}
    settings |= {"privacy": privacy(noise)} if noise else {}

    class Declaring(Gate):
        def request(self, requester: Requester, call: Call) -> Decision:
            return super().request(requester, replace(call, settings=settings) if call.method == START else call)

    return Declaring(Policy.of(read_toml(POLICY), folder), folder, rows=lambda: ROWS)


def privacy(noise: float) -> dict[str, float]:
    return {"clip": 1.0, "noise": noise}


def hub_in(folder: Path) -> tuple[Process, str]:
    hub = Process("-m", "chimera", "hub", "up", "--folder", folder / "hub", "--port", 0)
    return hub, hub.line().split()[4].rstrip(";")


def members(folder: Path) -> None:
    from chimera.federation.hub.invite import invite
    from chimera.federation.identity.join import join

    own = [("node", f"{kind}-{name}") for kind in ("open", "gated") for name in NODES]
    for role, name in [*own, ("requester", "driver")]:
        join(*invite(folder / "hub", role, name), folder / name)  # type: ignore[arg-type]


def write_data(folder: Path) -> Any:
    import numpy as np
    import pandas as pd

    from chimera.data.split import DATASETS

    train = DATASETS.create("breast-cancer").train
    labels = np.array(train.classes)[train.targets]
    for place, name in enumerate(NODES):
        rows = slice(place * ROWS, (place + 1) * ROWS)
        own = folder / "data" / name
        own.mkdir(parents=True)
        pd.DataFrame(train.inputs[rows], columns=list(train.features)).to_csv(own / "X_train.csv", index=False)
        pd.DataFrame(labels[rows], columns=["y"]).to_csv(own / "y_train.csv", index=False)


class Speed(NamedTuple):
    """A turn.

    Attributes
    ----------
    rate : rounds per second, without start and end.
    spent_s : processor time of a round in driver, hub and nodes, in seconds.
    """

    rate: float
    spent_s: tuple[float, ...]


def speed(
    engine: dict[str, Any], rounds: int, given: argparse.Namespace, out: Path, hub: Process, nodes: Sequence[Process]
) -> Speed:
    """Train once, and return the speed."""
    import chimera
    from chimera.training.progress.callback import Callback

    times: list[tuple[int, float, tuple[float, ...]]] = []

    class Clock(Callback):
        def on_progress(self, progress: Any) -> None:
            spent_s = time.process_time(), hub.spent_s(), sum(node.spent_s() for node in nodes)
            times.append((progress.rounds, time.perf_counter(), spent_s))

    chimera.train(
        {"name": "mlp", "hidden": [given.hidden]}, "breast-cancer", engine=engine, strategy=STRATEGY, workers=len(NODES),
        rounds=rounds, batch_size=32, optimizer={"name": "sgd", "lr": 0.05}, callbacks=[Clock()], log_every=10, out=out,
        checkpoint_every=given.checkpoint_every, privacy=privacy(given.noise) if given.noise else None,
    )  # fmt: skip
    (first, began, before), (last, ended, after) = times[0], times[-1]
    made = last - first
    return Speed(made / (ended - began), tuple((b - a) / made for a, b in zip(before, after, strict=True)))


def rounds(given: argparse.Namespace) -> None:
    turns, hidden = given.turns, given.hidden
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        write_data(folder)
        hub, _ = hub_in(folder)
        started = [hub]
        try:
            members(folder)
            http = [Process(__file__, "serve-http", folder, node, hidden) for node in NODES]
            started += http
            urls = [process.line() for process in http]
            engines: dict[str, dict[str, Any]] = {"http": {"name": "http", "nodes": urls}}
            nodes = {"http": http}
            for column, kind in list(KINDS.items())[1:]:
                named = [f"{kind}-{node}" for node in NODES]
                dialling = [Process(__file__, "serve-node", folder, node, hidden, given.noise) for node in named]
                started += dialling
                for process in dialling:
                    process.line()
                engines[column] = {"name": "federation", "nodes": named, "identity": str(folder / "driver")}
                nodes[column] = dialling
            found: dict[str, list[Speed]] = {name: [] for name in engines}
            for turn in range(turns):
                for name, engine in engines.items():
                    out = folder / f"{name}{turn}"
                    found[name].append(speed(engine, given.rounds, given, out, hub, nodes[name]))
            for name, values in found.items():
                rates = [value.rate for value in values]
                pairs = zip(found["http"], rates, strict=True)
                ratio = statistics.median(base.rate / rate for base, rate in pairs)
                spent = [
                    statistics.median(each) * 1000 for each in zip(*(value.spent_s for value in values), strict=True)
                ]
                used = zip(found["http"], values, strict=True)
                times = statistics.median(sum(value.spent_s) / sum(base.spent_s) for base, value in used)
                shown = f"{statistics.median(rates):8.1f} rounds/s, a round takes {ratio:.2f} times as long"
                parts = zip(("driver", "hub", "nodes"), spent, strict=True)
                own = ", ".join(f"{part} {value:.2f}" for part, value in parts)
                shown += f", {sum(spent):.2f} ms of processor time ({own}), {times:.2f} times as much"
                print(f"{name:12} {shown}  {[round(rate, 1) for rate in rates]}")
            print(f"medians of {turns} turns; load {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores")
        finally:
            for process in started:
                process.process.kill()


async def _idle_nodes(folder: Path, count: int, ready: Callable[[], None]) -> None:
    from chimera.engines.federation.credentials import Credentials
    from chimera.engines.federation.wire.frames import PROTOCOL, Hello
    from chimera.engines.federation.wire.link import Link

    class Idle:
        busy = False
        here = 0

        def joined(self, *_: Any) -> None:
            Idle.here += 1
            if Idle.here == count:
                ready()

        def received(self, *_: Any) -> None:
            pass

        def parted(self) -> None:
            Idle.here -= 1

    async with asyncio.TaskGroup() as group:
        for place in range(count):
            credentials = Credentials.read(folder / f"node-{place}", "node")
            group.create_task(Link(credentials, Hello(PROTOCOL, f"{place}", "0"), Idle()).run())
            await asyncio.sleep(0.002)


def serve_idle(folder: str, count: str) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))
    asyncio.run(_idle_nodes(Path(folder), int(count), lambda: print("connected")))


def write_members(folder: Path, count: int) -> None:
    """Write the identities of many nodes without the network."""
    import msgspec

    from chimera.engines.federation.credentials import AUTHORITY, CERTIFICATE, KEY, MEMBERSHIP, Membership
    from chimera.engines.federation.renewal import request_for
    from chimera.federation.hub.state import State
    from chimera.federation.identity.authority import Authority, key_pem, new_key

    authority, state = Authority(folder / "hub"), State(folder / "hub")
    url = state.fact("url") or ""
    key = new_key()  # one key for all: only the certificates must differ
    for place in range(count):
        name = f"node-{place}"
        own = folder / name
        own.mkdir()
        state.invite("node", name, name)
        issued, _, _ = state.redeem(name, lambda role, name: authority.member(request_for(key), role, name))
        (own / AUTHORITY).write_bytes(authority.pem)
        (own / KEY).write_bytes(key_pem(key))
        (own / CERTIFICATE).write_bytes(issued.pem)
        (own / MEMBERSHIP).write_bytes(msgspec.json.encode(Membership(url, name, "node")))
    state.close()


def idle(count: int, seconds: float) -> None:
    import psutil

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))
        hub, _ = hub_in(folder)
        started = [hub]
        try:
            write_members(folder, count)
            seen = psutil.Process(hub.process.pid)
            alone = seen.memory_info().rss
            clients = Process(__file__, "serve-idle", folder, count)
            started.append(clients)
            clients.line()
            before, began = seen.cpu_times(), time.monotonic()
            time.sleep(seconds)
            after, lasted = seen.cpu_times(), time.monotonic() - began
            share = (after.user + after.system - before.user - before.system) / lasted
            memory = f"{seen.memory_info().rss / 1e6:.0f} MB (without them {alone / 1e6:.0f} MB)"
            print(f"{count} idle nodes: {memory}, {share:.1%} of a core")
        finally:
            for process in started:
                process.process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("rounds")
    one.add_argument("--turns", type=int, default=5)
    one.add_argument("--rounds", type=int, default=200)
    one.add_argument("--hidden", type=int, default=64)
    one.add_argument(
        "--noise", type=float, default=0.0, help="noise multiplier of a private run; 0: no [train.privacy]"
    )
    one.add_argument("--checkpoint-every", type=int, default=1, help="rounds between checkpoints")
    one.add_argument("--folder", type=Path, help="where nodes keep ledgers and logs; default: that of temporary files")
    other = commands.add_parser("idle")
    other.add_argument("--nodes", type=int, default=1000)
    other.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args()
    if given.command == "rounds":
        rounds(given)
    else:
        idle(given.nodes, given.seconds)


if __name__ == "__main__":
    inner = {"serve-http": serve_http, "serve-node": serve_node, "serve-idle": serve_idle}
    if len(sys.argv) > 1 and sys.argv[1] in inner:
        inner[sys.argv[1]](*sys.argv[2:])
    else:
        main()

"""Real slow links: DDP with hooks of torch and of Chimera, Chimera on Ray, and the predictions of the engine ``simulated``.

Each worker is in a network namespace of its own. `tc` limits the rate of its link, and packets are delayed where they arrive.
A check of each link comes before the measurements. The small network (784-128-128-10) and the large one (10.0 million
parameters) train on MNIST with SGD, batch 64 a worker, until 95 % of 2,000 test images are classified correctly. This takes the
same number of steps on all links, so the script counts the steps once, without a limit. Then the variants alternate on each
link. Needs Linux, root, iproute2 and iptables::

    python benchmarks/slow_links.py [--turns 3] [--workers 2] [--links 100:0 100:20 1000:0 1000:20] [--only ddp ray]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from slow_links_chimera import STRATEGIES, train_chimera
from slow_links_ddp import ALONE, BATCH, HOOKS, NETWORKS
from slow_links_network import NEEDED, Inside, Link, Machines, counter, permitted
from slow_links_tables import Found, show_ddp, show_ray, show_training

TARGET, EVALUATE_EVERY = 0.95, 25
MAX_STEPS = {"small": 800, "large": 400}  # of the runs to the target
STEPS = {"small": 63, "large": 8}  # of the measurements on a link
ROUNDS = {"small": (40, 120), "large": (4, 12)}  # of Chimera: before the measurement, in all
MAX_RUN_S = 400.0
LINKS = ["0:0", "100:0", "100:20", "1000:0", "1000:20"]
RAY_PORT = 6379
QUIET = {
    "OMP_NUM_THREADS": "1",
    "PYTHONWARNINGS": "ignore",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "GLOG_minloglevel": "2",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",  # no other process is in these networks
}


def run_ddp(machines: Machines, measurements: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Start a process on each machine, and return the figures of the first one."""
    first = machines.addresses["m0"]
    shared = {"size": len(machines.addresses), "address": first, "timeout_s": MAX_RUN_S, "counter": counter()}
    processes = [
        Inside(
            machines, place, "slow_links_ddp", json.dumps({**shared, "rank": rank, "measurements": measurements}),
            GLOO_SOCKET_IFNAME="eth0", **QUIET,
        )
        for rank, place in enumerate(machines.addresses)
    ]  # fmt: skip
    try:
        return [json.loads(processes[0].wait(1 + number, MAX_RUN_S)) for number in range(len(measurements))]
    finally:
        for process in processes:
            process.kill()


@contextlib.contextmanager
def ray_cluster(machines: Machines) -> Iterator[str]:
    """Start a node of Ray on each machine; yield the address of the cluster."""
    address = f"{machines.addresses['m0']}:{RAY_PORT}"
    common = ("ray.scripts.scripts", "start", "--block", "--num-cpus", "3", "--object-store-memory", "400000000")
    nodes: list[Inside] = []
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        try:
            for place, own in machines.addresses.items():
                how = ("--address", address)
                if not nodes:
                    how = ("--head", "--port", str(RAY_PORT), "--include-dashboard", "false", "--temp-dir", folder)
                command = (*common, *how, "--node-ip-address", own)
                nodes.append(Inside(machines, place, *command, CHIMERA_MACHINE=place, **QUIET))
                lines = 1
                while "Ray runtime started" not in nodes[-1].wait(lines, MAX_RUN_S):
                    lines += 1
            yield address
        finally:
            for node in nodes:
                node.kill()
            machines.kill_all()


def run_on_ray(machines: Machines, address: str, strategy: str, network: str) -> dict[str, Any]:
    """Run Chimera with the driver on the first machine."""
    begin, rounds = ROUNDS[network]
    engine = {"name": "ray", "address": address, "placement": "spread"}
    settings = {"run": strategy, "network": network, "engine": engine, "workers": len(machines.addresses)}
    settings |= {"rounds": rounds, "log_every": begin}
    process = Inside(machines, "m0", "slow_links_chimera", json.dumps(settings), CHIMERA_MACHINE="m0", **QUIET)
    try:
        return json.loads(process.wait(1, MAX_RUN_S))
    finally:
        process.kill()


def predict(link: Link, strategy: str, network: str, workers: int, step_s: float) -> float:
    """Return the samples/s of the engine ``simulated`` for such links, if a worker needs ``step_s`` for a gradient."""
    wire = {"latency_s": link.delay_ms / 1000, "bandwidth_bytes_s": link.mbit_s * 1e6 / 8 or float("inf")}
    engine = {"name": "simulated", "network": wire, "compute": {"seconds_per_sample": step_s / BATCH}}
    begin, rounds = ROUNDS[network]
    return train_chimera(strategy, network, engine, workers, rounds, begin)["samples_s"]


def fixed(network: str, hook: str) -> dict[str, Any]:
    """Return the settings of a measurement of some steps."""
    return {"hook": hook, "network": network, "steps": STEPS[network], "target": None, "evaluate_every": 1}


def train(machines: Machines, networks: list[str], hooks: list[str]) -> dict[tuple[str, str], dict[str, Any]]:
    """Train to the target with each hook."""
    keys = [(network, hook) for network in networks for hook in hooks if hook != ALONE]
    until = {"target": TARGET, "evaluate_every": EVALUATE_EVERY}
    wanted = [{"network": n, "hook": hook, "steps": MAX_STEPS[n], **until} for n, hook in keys]
    return dict(zip(keys, run_ddp(machines, wanted), strict=True))


def measure(machines: Machines, links: list[Link], args: argparse.Namespace) -> Found:
    """Measure all variants on all links, one after another, ``args.turns`` times."""
    found: Found = defaultdict(list)
    with ray_cluster(machines) if "ray" in args.only else contextlib.nullcontext("") as address:
        for _ in range(args.turns):
            for link in links:
                machines.shape(link)
                for network in args.networks:
                    if "ddp" in args.only:
                        told = run_ddp(machines, [fixed(network, hook) for hook in args.hooks])
                        for hook, each in zip(args.hooks, told, strict=True):
                            found[link, network, hook].append(each)
                    for strategy in STRATEGIES if "ray" in args.only else ():
                        found[link, network, strategy].append(run_on_ray(machines, address, strategy, network))
                print(f"  {time.strftime('%H:%M:%S')} {link} is done", file=sys.stderr)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2, choices=(2, 3, 4))
    parser.add_argument("--links", nargs="+", default=LINKS, help="rate in Mbit/s : delay in ms, one way; 0: no limit")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--hooks", nargs="+", choices=HOOKS, default=list(HOOKS))
    parser.add_argument("--only", nargs="+", choices=("ddp", "ray"), default=("ddp", "ray"))
    parser.add_argument("--no-target", action="store_true", help="do not train to the target")
    args = parser.parse_args()
    if not permitted():
        sys.exit(f"needs network namespaces: Linux, root, and {', '.join(NEEDED)} (of iproute2, iptables and procps)")
    if "plain" not in args.hooks:
        parser.error("the hooks are compared with plain DDP: add 'plain' to --hooks")
    links = [Link(*map(float, each.split(":"))) for each in args.links]
    import numpy
    import ray
    import torch

    import chimera

    versions = (
        f"chimera {chimera.__version__}, torch {torch.__version__}, ray {ray.__version__}, numpy {numpy.__version__}"
    )
    print(f"Python {platform.python_version()}, {versions}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
    print(f"medians of {args.turns} repetitions, {args.workers} workers of one thread")
    with Machines(args.workers) as machines:
        for link in links:
            machines.shape(link)
            checked = machines.check()
            name, rate = f"{link}:", f"{checked.mbit_s:,.0f} Mbit/s"
            print(f"{name:20} a stream has {rate}, a byte returns in {checked.round_trip_ms:.2f} ms", flush=True)
        machines.shape(Link(0, 0))
        training = {} if args.no_target else train(machines, args.networks, args.hooks)
        show_training(training, TARGET)
        alone_s = {
            network: run_ddp(machines, [fixed(network, ALONE)])[0]["step_s"] for network in args.networks
        }  # settings of `simulated`
        found = measure(machines, links, args)
    for network in args.networks:
        for link in links:
            if "ddp" in args.only:
                show_ddp(link, network, args.hooks, found, training)
        if "ray" in args.only:
            predicted = {
                (link, strategy): predict(link, strategy, network, args.workers, alone_s[network])
                for link in links
                for strategy in STRATEGIES
            }
            show_ray(network, found, predicted)


if __name__ == "__main__":
    main()

"""All-reduce between machines: groups of the engine `ray` and gloo of torch.distributed, in turn, over several links.

One process in a network namespace for each member. It needs Linux, root, iproute2 and iptables. Run it on an idle machine::

    python benchmarks/group_collectives.py [--members 2 3] [--elements 1000 38410 1000000 10000000] [--repeats 9]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from chimera.core.call import ActorContext
from chimera.engines.ray.groups.connections import Connections
from chimera.engines.ray.groups.rendezvous import Members
from chimera.engines.ray.groups.tcp_group import TcpGroup
from slow_links_network import NEEDED, Inside, Link, Machines, permitted

LINKS = [Link(0, 0), Link(1000, 0), Link(1000, 20), Link(100, 0), Link(100, 20)]
MAX_S, POLL_S = 600.0, 0.01
IN_A_ROW = 5  # so that the times at which the members leave the barrier hardly count


class Files:
    """Entries that all processes of this machine can read, in place of Ray's store."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def set(self, key: str, value: str) -> None:
        path = self._folder / key.replace("/", "-")
        path.with_suffix(".new").write_text(value)
        path.with_suffix(".new").rename(path)

    def get(self, key: str) -> bytes:
        path = self._folder / key.replace("/", "-")
        while not path.exists():
            time.sleep(POLL_S)
        return path.read_bytes()


class Costs(ActorContext):
    """Counters without a reader."""

    waited_s, collective_bytes, sent_bytes, received_bytes = 0.0, 0, 0, 0


class Living(Members):
    """Members that do not die."""

    def check_for_deaths(self) -> None: ...


def group_of(rank: int, size: int, address: str, folder: Path) -> TcpGroup:
    """Return a group as on engine `ray`."""
    members, files, costs = Living(Costs(), f"{rank}", [(f"{i}", f"{i}") for i in range(size)]), Files(folder), Costs()
    return TcpGroup(costs, members, lambda: Connections(costs, members, files, address))  # type: ignore[arg-type]


def gloo(rank: int, size: int, folder: Path) -> Any:
    """Return a group of torch.distributed over gloo."""
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    store = dist.FileStore(str(folder / "store"), size)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    return dist


def measure(rank: int, size: int, address: str, folder: Path, elements: list[int], repeats: int) -> None:
    """Print the median seconds of both for each number of elements, as JSON."""
    import torch

    torch.set_num_threads(1)
    own, dist = group_of(rank, size, address, folder), gloo(rank, size, folder)
    for count in elements:
        vector = np.ones(count, np.float32)
        tensor = torch.from_numpy(vector)
        ways: dict[str, Callable[[], Any]] = {
            "chimera": lambda vector=vector: own.all_reduce(vector),  # type: ignore[misc]
            "gloo": lambda tensor=tensor: dist.all_reduce(tensor),  # type: ignore[misc]
        }
        took: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(repeats + 1):
            for name, reduce in ways.items():
                own.barrier()
                began_s = time.perf_counter()
                for _ in range(IN_A_ROW):
                    reduce()
                if turn:
                    took[name].append((time.perf_counter() - began_s) / IN_A_ROW)
                vector[:] = 1
        print(json.dumps({name: statistics.median(values) for name, values in took.items()}), flush=True)
    own.barrier()
    dist.destroy_process_group()


def compare(machines: Machines, size: int, link: Link, elements: list[int], repeats: int) -> None:
    """Print a row of the table for each number of elements; times are those of the first member."""
    machines.shape(link)
    with tempfile.TemporaryDirectory() as folder:
        started = [
            Inside(
                machines, place, "group_collectives", "member", rank, size, machines.addresses[place], folder,
                json.dumps(elements), repeats,
            )
            for rank, place in enumerate(list(machines.addresses)[:size])
        ]  # fmt: skip
        try:
            for row, count in enumerate(elements):
                for process in started:
                    process.wait(row + 1, MAX_S)
                found = json.loads(started[0].lines[row][1])
                own, other = 1e3 * found["chimera"], 1e3 * found["gloo"]
                print(f"| {size} | {link} | {count:,} | {own:.2f} | {other:.2f} | {other / own:.2f} |", flush=True)
        finally:
            for process in started:
                process.kill()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--members", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--elements", type=int, nargs="+", default=[1000, 38_410, 1_000_000, 10_000_000])
    parser.add_argument("--links", type=float, nargs="+", help="keep the links with these rates in Mbit/s; 0: no limit")
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()
    if not permitted():
        sys.exit(NEEDED)
    import torch

    print(f"Python {platform.python_version()}, torch {torch.__version__}, {os.cpu_count()} processors")
    print("| members | link | elements | chimera, ms | gloo, ms | gloo / chimera |\n|---|---|---|---|---|---|")
    with Machines(max(args.members)) as machines:
        for size in args.members:
            for link in (each for each in LINKS if not args.links or each.mbit_s in args.links):
                compare(machines, size, link, args.elements, args.repeats)


if __name__ == "__main__":
    if sys.argv[1:2] == ["member"]:
        rank, size, address, folder, elements, repeats = sys.argv[2:]
        measure(int(rank), int(size), address, Path(folder), json.loads(elements), int(repeats))
    else:
        main()

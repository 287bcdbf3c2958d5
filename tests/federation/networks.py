"""Network namespaces with NAT, delay and loss, made by a test and removed after it.

Usage: ``python -m federation.networks proxy ADDRESS`` relays ``CONNECT``; ``python -m federation.networks driver FOLDER STOP
NODES`` runs rounds on all nodes until there is a file STOP, and prints the duration of each.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from namespaces import Namespaces

HUB, PROXY, DRIVER = "10.77.0.1", "10.77.0.2", "10.77.0.3"
PORT = 3128
SIZE = 20_000
DELAY_S, LOSS = 0.025, 0.01  # of each direction


class Networks(Namespaces):
    """A network with the hub, the driver and a proxy, and behind NAT routers one network for each node.

    Attributes
    ----------
    delayed : how packets of nodes are delayed by 50 ms for both directions together; empty: they are not.
    """

    def __init__(self, nodes: list[str]) -> None:
        super().__init__()
        self._nodes = nodes
        self.delayed = ""

    def build(self) -> None:
        self.space("hub")
        self.bridge("hub", HUB)
        for place, address in (("proxy", PROXY), ("driver", DRIVER)):
            self.space(place)
            self.attach("hub", f"to-{place}", place, "wan0", address)
        for number, node in enumerate(self._nodes):
            self._behind_nat(node, f"10.77.0.{10 + number}", number)

    def _behind_nat(self, node: str, address: str, number: int) -> None:
        router = f"nat-{node}"
        self.space(router)
        self.space(node)
        self.attach("hub", f"to-nat{number}", router, "wan0", address)
        self.cable(router, "lan0", node, "lan0")
        for place, own in ((router, "192.168.1.1"), (node, "192.168.1.2")):
            self.inside(place, "ip", "address", "add", f"{own}/24", "dev", "lan0")
            self.inside(place, "ip", "link", "set", "lan0", "up")
        self.inside(node, "ip", "route", "add", "default", "via", "192.168.1.1")
        self.inside(router, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        self.inside(router, "iptables", "-t", "nat", "-A", "POSTROUTING", "-o", "wan0", "-j", "MASQUERADE")
        self.inside(router, "iptables", "-P", "FORWARD", "DROP")
        self.inside(router, "iptables", "-A", "FORWARD", "-i", "lan0", "-j", "ACCEPT")
        back = "-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED", "-j", "ACCEPT"
        self.inside(router, "iptables", "-A", "FORWARD", "-i", "wan0", *back)
        self._impair(router)

    def _impair(self, router: str) -> None:
        """Delay and lose packets in both directions."""
        netem = "root", "netem", "delay", f"{DELAY_S * 1000:g}ms", "loss", f"{LOSS:.0%}"
        try:
            for device in ("wan0", "lan0"):
                self.inside(router, "tc", "qdisc", "add", "dev", device, *netem)
            self.delayed = "netem"
        except subprocess.CalledProcessError:  # the kernel has no netem
            lost = "-m", "statistic", "--mode", "random", "--probability", f"{LOSS}", "-j", "DROP"
            self.inside(router, "iptables", "-I", "FORWARD", "1", *lost)
            self.delayed = "nfqueue" if self.delay(router, DELAY_S, "FORWARD") else ""

    def only_by_proxy(self, node: str) -> None:
        """Let a node reach the proxy and no other address."""
        rule = "-i", "lan0", "!", "-d", PROXY, "-j", "DROP"
        self.inside(f"nat-{node}", "iptables", "-I", "FORWARD", "1", *rule)

    @contextlib.contextmanager
    def cut(self, node: str, *how: str) -> Iterator[None]:
        """Break the connections of a node: packets get an answer that resets, or none (``DROP``)."""
        target = how or ("REJECT", "--reject-with", "tcp-reset")
        rule = "-p", "tcp", "-j", *target
        self.inside(f"nat-{node}", "iptables", "-I", "FORWARD", "1", *rule)
        try:
            yield
        finally:
            self.inside(f"nat-{node}", "iptables", "-D", "FORWARD", *rule)


async def proxy(address: str) -> None:
    """Relay what clients ask for by ``CONNECT``."""

    async def copy(reader: Any, writer: Any) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.transport.abort()

    async def connection(reader: Any, writer: Any) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:  # the client only tried whether it can reach the proxy
            writer.close()
            return
        verb, target = head.split()[:2]
        assert verb == b"CONNECT"
        host, _, port = target.decode().rpartition(":")
        try:
            to_reader, to_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.transport.abort()
            return
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await asyncio.gather(copy(reader, to_writer), copy(to_reader, writer))

    server = await asyncio.start_server(connection, address, PORT)
    print("listens", flush=True)  # noqa: T201 - the test reads this
    async with server:
        await server.serve_forever()


def beginning(places: int) -> tuple[Any, list[Any]]:
    """Return the first vector of the rounds, and the states of the actors."""
    return np.random.default_rng(1).normal(size=SIZE), [np.full(4, float(place)) for place in range(places)]


def joined(results: list[Any]) -> tuple[Any, list[Any]]:
    """Return the mean of the results of a round, and the states that they begin with."""
    return np.mean([result[4:] for result in results], axis=0), [result[:4] for result in results]


def driver(folder: str, stop: str, nodes: str) -> None:
    """Run rounds of `Carried`. An actor whose node was killed is made again, with the state that its last answer had."""
    from chimera.core.errors import ActorLost
    from chimera.engines.federation import FederationEngine
    from federation.processes import Carried

    names = nodes.split(",")
    vector, states = beginning(len(names))
    tries = [0] * len(names)
    with FederationEngine(identity=folder, nodes=names, wait_s=60.0, away_s=60.0) as engine:

        def make(place: int) -> Any:
            tries[place] += 1
            return engine.spawn(Carried, states[place], f"{place}:{tries[place]}", name=f"worker-{place}")

        def ask(place: int) -> Any:
            return actors[place].step(vector, f"{place}.{number}:{tries[place]}")

        def answer(place: int, ref: Any) -> Any:
            while True:
                try:
                    return engine.get(ref, 120.0)
                except ActorLost:
                    actors[place] = make(place)
                    ref = ask(place)

        actors = [make(place) for place in range(len(names))]
        number = 0
        while not Path(stop).exists():
            began_s = time.monotonic()
            refs = [ask(place) for place in range(len(names))]
            vector, states = joined([answer(place, ref) for place, ref in enumerate(refs)])
            number += 1
            print(time.monotonic() - began_s, flush=True)  # noqa: T201 - the test reads this
        print(json.dumps(hashlib.sha256(vector.tobytes()).hexdigest()), flush=True)  # noqa: T201


if __name__ == "__main__":
    if sys.argv[1] == "proxy":
        asyncio.run(proxy(sys.argv[2]))
    else:
        driver(*sys.argv[2:])

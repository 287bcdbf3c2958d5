"""Network namespaces with NAT, delay and loss, made by a test and removed after it.

Usage: ``python -m federation.networks proxy ADDRESS`` relays ``CONNECT``; ``python -m federation.networks driver FOLDER STOP
NODES`` runs rounds on all nodes until there is a file STOP, and prints the duration of each; ``python -m federation.networks
delay`` delays the packets that the namespace forwards, for kernels without netem.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

HUB, PROXY, DRIVER = "10.77.0.1", "10.77.0.2", "10.77.0.3"
PORT = 3128
SIZE = 20_000
DELAY_S, LOSS = 0.025, 0.01  # of each direction


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


class Networks:
    """A network with the hub, the driver and a proxy, and behind NAT routers one network for each node.

    Attributes
    ----------
    prefix : begins the names of its namespaces.
    delayed : how packets of nodes are delayed by 50 ms for both directions together; empty: they are not.
    """

    def __init__(self, nodes: list[str]) -> None:
        self.prefix = f"cf{os.getpid()}-"
        self._made: list[str] = []
        self._nodes = nodes
        self._delaying: list[Inside] = []
        self.delayed = ""

    def name(self, place: str) -> str:
        return self.prefix + place

    def inside(self, place: str, *command: str) -> None:
        run("ip", "netns", "exec", self.name(place), *command)

    def _space(self, place: str) -> None:
        run("ip", "netns", "add", self.name(place))
        self._made.append(self.name(place))
        self.inside(place, "ip", "link", "set", "lo", "up")

    def _cable(self, one: str, name: str, other: str, its_name: str) -> None:
        ends = "veth", "peer", "name", its_name, "netns", self.name(other)
        run("ip", "link", "add", "name", name, "netns", self.name(one), "type", *ends)

    def _attach(self, place: str, address: str, port: str) -> None:
        """Connect a namespace to the bridge of the hub's."""
        self._cable("hub", port, place, "wan0")
        self.inside("hub", "ip", "link", "set", port, "master", "bridge0", "up")
        self.inside(place, "ip", "address", "add", f"{address}/24", "dev", "wan0")
        self.inside(place, "ip", "link", "set", "wan0", "up")

    def __enter__(self) -> Networks:
        try:
            self._space("hub")
            self.inside("hub", "ip", "link", "add", "name", "bridge0", "type", "bridge")
            self.inside("hub", "ip", "address", "add", f"{HUB}/24", "dev", "bridge0")
            self.inside("hub", "ip", "link", "set", "bridge0", "up")
            for place, address in (("proxy", PROXY), ("driver", DRIVER)):
                self._space(place)
                self._attach(place, address, f"to-{place}")
            for number, node in enumerate(self._nodes):
                self._behind_nat(node, f"10.77.0.{10 + number}", number)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _behind_nat(self, node: str, address: str, number: int) -> None:
        router = f"nat-{node}"
        self._space(router)
        self._space(node)
        self._attach(router, address, f"to-nat{number}")
        self._cable(router, "lan0", node, "lan0")
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
            self._queue(router)

    def _queue(self, router: str) -> None:
        """Delay packets by a process that holds each of them, if the kernel permits it."""
        self._delaying.append(Inside(self, router, "federation.networks", "delay"))
        try:
            self._delaying[-1].wait(1, 30)
            self.inside(router, "iptables", "-t", "mangle", "-A", "FORWARD", "-j", "NFQUEUE", "--queue-num", "0")
            self.delayed = "nfqueue"
        except (AssertionError, subprocess.CalledProcessError):
            self.delayed = ""

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

    def __exit__(self, *_: Any) -> None:
        for process in self._delaying:
            process.kill()
        for name in reversed(self._made):
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


class Inside:
    """A process in a namespace; its lines are recorded with the times at which they came."""

    def __init__(self, networks: Networks, place: str, *command: Any, **variables: str) -> None:
        paths = [str(Path(__file__).parents[1]), *sys.path]
        environment = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", networks.name(place), sys.executable, "-m", *map(str, command)],
            env=environment | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"} | variables,
            stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self.lines: list[tuple[float, str]] = []
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.lines.append((time.monotonic(), line))
                self._changed.notify_all()

    def wait(self, count: int, timeout_s: float) -> str:
        """Wait for a number of lines, and return the last of them."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.lines) >= count, timeout_s), self.lines
            return self.lines[count - 1][1]

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, 9)
        self.process.wait()
        self._thread.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


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


def delay() -> None:
    """Hold each packet of the kernel's queue 0 for `DELAY_S`, in order; see ``nfnetlink_queue.h`` of Linux."""
    packet, verdict_of_all, configuration = (3 << 8 | number for number in (0, 3, 2))  # of the queue's subsystem
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12) as queue:
        queue.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)

        def send(kind: int, attribute: int, value: bytes) -> None:
            body = struct.pack("=BBH", 0, 0, 0) + struct.pack("=HH", 4 + len(value), attribute)
            body += value + bytes(-len(value) % 4)
            queue.send(struct.pack("=IHHII", 16 + len(body), kind, 1, 0, 0) + body)

        send(configuration, 1, struct.pack(">BBH", 1, 0, 0))  # bind
        send(configuration, 2, struct.pack(">IB", 0, 1))  # numbers of packets, not their content
        send(configuration, 3, struct.pack(">I", 1 << 16))  # most packets in the queue
        print("delays", flush=True)  # noqa: T201 - the test reads this
        waiting: deque[tuple[float, int]] = deque()
        while True:
            left_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
            if select.select([queue], [], [], left_s)[0]:
                messages, at = queue.recv(1 << 16), 0
                while at < len(messages):
                    size, kind = struct.unpack_from("=IH", messages, at)
                    if kind == packet:  # its number is the first attribute
                        (number,) = struct.unpack_from(">I", messages, at + 24)
                        waiting.append((time.monotonic() + DELAY_S, number))
                    at += size + -size % 4
            last = None
            while waiting and waiting[0][0] <= time.monotonic():
                last = waiting.popleft()[1]
            if last is not None:
                send(verdict_of_all, 2, struct.pack(">II", 1, last))  # accept this packet and those before


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
    elif sys.argv[1] == "delay":
        delay()
    else:
        driver(*sys.argv[2:])

"""Slow links between network namespaces, and a check of them: one namespace for each machine, all on one bridge.

`tc tbf` limits the rate of each machine's uplink and downlink. A packet that arrives at a machine is delayed.
``python -m slow_links_network receive ADDRESS`` and ``send ADDRESS`` measure a link.
"""

from __future__ import annotations

import json
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from namespaces import NEEDED, Inside, Namespaces, permitted

__all__ = ["NEEDED", "Checked", "Inside", "Link", "Machines", "counter", "permitted"]

DEVICE = "eth0"
PORT, CHECK_S, PINGS = 5201, 2.0, 30
MAX_BURST, MIN_BURST, BURST_S = 65536, 8192, 5e-4


class Link(NamedTuple):
    """The properties of all links.

    Attributes
    ----------
    mbit_s : rate of each direction in Mbit/s; 0: no limit.
    delay_ms : delay of each packet in ms, one way.
    """

    mbit_s: float
    delay_ms: float

    def __str__(self) -> str:
        if not self.mbit_s:
            return "no limit"
        rate = f"{self.mbit_s / 1000:g} Gbit/s" if self.mbit_s >= 1000 else f"{self.mbit_s:g} Mbit/s"
        return f"{rate}, {self.delay_ms:g} ms"


class Checked(NamedTuple):
    """Measurements by a stream and by single bytes between two machines."""

    mbit_s: float
    round_trip_ms: float


class Machines(Namespaces):
    """Machines with an address each on one switch."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.addresses = {f"m{number}": f"10.78.0.{1 + number}" for number in range(count)}

    def build(self) -> None:
        """Create the switch and the machines."""
        self.space("switch")
        self.bridge("switch")
        for place, address in self.addresses.items():
            self.space(place)
            self.attach("switch", f"to-{place}", place, DEVICE, address)

    def shape(self, link: Link) -> None:
        """Give all links these properties."""
        for place in self.addresses:
            self.undelay(place)
            for where, device in ((place, DEVICE), ("switch", f"to-{place}")):
                self._limit(where, device, link.mbit_s)
            if link.delay_ms and not self.delay(place, link.delay_ms / 1000, "PREROUTING", "-i", DEVICE):
                raise RuntimeError("the kernel has neither netem nor NFQUEUE, so packets cannot be delayed")

    def _limit(self, place: str, device: str, mbit_s: float) -> None:
        """Limit a device to a rate. If Linux permits it, a packet takes at most half a millisecond."""
        burst = int(min(max(mbit_s * 1e6 / 8 * BURST_S, MIN_BURST), MAX_BURST)) if mbit_s else MAX_BURST
        self.inside(place, "ip", "link", "set", device, "gso_max_size", str(burst))
        command = ["ip", "netns", "exec", self.name(place), "tc", "qdisc", "del", "dev", device, "root"]
        subprocess.run(command, check=False, capture_output=True)  # there may be none
        if mbit_s:
            rate = "rate", f"{mbit_s:g}mbit", "burst", f"{burst + 2000}", "limit", "1000000"
            self.inside(place, "tc", "qdisc", "add", "dev", device, "root", "tbf", *rate)

    def check(self) -> Checked:
        """Measure the link from the second machine to the first one."""
        server = Inside(self, "m0", "slow_links_network", "receive", self.addresses["m0"])
        client = None
        try:
            server.wait(1, 60)
            client = Inside(self, "m1", "slow_links_network", "send", self.addresses["m0"])
            round_trip_ms = json.loads(client.wait(1, 60))
            return Checked(json.loads(server.wait(2, 60)), round_trip_ms)
        finally:
            for process in (server, client):
                if process is not None:
                    process.kill()


def counter() -> str:
    """Return the file that holds the bytes that this machine's device has sent."""
    return f"/sys/class/net/{DEVICE}/statistics/tx_bytes"


def receive(address: str) -> None:
    """Return single bytes; then measure the rate of a stream, and print it in Mbit/s."""
    with socket.create_server((address, PORT)) as server:
        print("listens", flush=True)
        with server.accept()[0] as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(PINGS):
                connection.sendall(connection.recv(1))
            begin_s, received, buffer = None, 0, bytearray(1 << 20)
            while count := connection.recv_into(buffer):
                if begin_s is None:
                    begin_s = time.perf_counter()
                else:
                    received += count
            print(json.dumps(received * 8e-6 / (time.perf_counter() - (begin_s or 0))), flush=True)


def send(address: str) -> None:
    """Measure the round trip of a byte, and print it in milliseconds; then send a stream for `CHECK_S`."""
    with socket.create_connection((address, PORT)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        trips = []
        for _ in range(PINGS):
            begin_s = time.perf_counter()
            connection.sendall(b".")
            connection.recv(1)
            trips.append(time.perf_counter() - begin_s)
        print(json.dumps(1000 * statistics.median(trips)), flush=True)
        chunk, end_s = bytes(1 << 16), time.perf_counter() + CHECK_S
        while time.perf_counter() < end_s:
            connection.sendall(chunk)


if __name__ == "__main__":
    {"receive": receive, "send": send}[sys.argv[1]](sys.argv[2])

"""Network namespaces of Linux, cables between them, processes in them, and delays of packets, for tests and benchmarks.

Usage: ``python -m namespaces SECONDS`` delays each packet of the namespace's queue 0, for kernels without netem.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, Self

NEEDED = ("ip", "iptables", "tc", "sysctl")


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def permitted() -> bool:
    """Return whether this process can make namespaces, and has the commands that set up their networks."""
    if os.name != "posix" or not all(map(shutil.which, NEEDED)):
        return False
    name = f"cf{os.getpid()}-probe"
    made = subprocess.run(["ip", "netns", "add", name], check=False, capture_output=True).returncode == 0
    if made:
        subprocess.run(["ip", "netns", "delete", name], check=False)
    return made


class Namespaces:
    """Namespaces that end with a block, together with the processes that delay their packets.

    Attributes
    ----------
    prefix : begins the names of the namespaces.
    """

    def __init__(self) -> None:
        self.prefix = f"cf{os.getpid()}-"
        self._made: list[str] = []
        self._delaying: dict[str, Inside] = {}

    def name(self, place: str) -> str:
        return self.prefix + place

    def inside(self, place: str, *command: str) -> None:
        run("ip", "netns", "exec", self.name(place), *command)

    def space(self, place: str) -> None:
        """Make a namespace."""
        run("ip", "netns", "add", self.name(place))
        self._made.append(self.name(place))
        self.inside(place, "ip", "link", "set", "lo", "up")

    def cable(self, one: str, name: str, other: str, its_name: str) -> None:
        """Connect two namespaces; ``name`` and ``its_name`` are the devices at the two ends."""
        ends = "veth", "peer", "name", its_name, "netns", self.name(other)
        run("ip", "link", "add", "name", name, "netns", self.name(one), "type", *ends)

    def bridge(self, place: str, *address: str) -> None:
        """Make a bridge in a namespace, with an address if one is given."""
        self.inside(place, "ip", "link", "add", "name", "bridge0", "type", "bridge")
        for each in address:
            self.inside(place, "ip", "address", "add", f"{each}/24", "dev", "bridge0")
        self.inside(place, "ip", "link", "set", "bridge0", "up")

    def attach(self, switch: str, port: str, place: str, device: str, address: str) -> None:
        """Connect the device of a namespace to the bridge of another one."""
        self.cable(switch, port, place, device)
        self.inside(switch, "ip", "link", "set", port, "master", "bridge0", "up")
        self.inside(place, "ip", "address", "add", f"{address}/24", "dev", device)
        self.inside(place, "ip", "link", "set", device, "up")

    def delay(self, place: str, seconds: float, *chain: str) -> bool:
        """Delay the packets of a chain of iptables by a process that holds them; return whether the kernel permits it."""
        self._delaying[place] = Inside(self, place, "namespaces", seconds)
        try:
            self._delaying[place].wait(1, 30)
            self.inside(place, "iptables", "-t", "mangle", "-A", *chain, "-j", "NFQUEUE", "--queue-num", "0")
        except (AssertionError, subprocess.CalledProcessError):
            return False
        return True

    def undelay(self, place: str) -> None:
        """End the delay of a namespace's packets."""
        if place in self._delaying:
            self.inside(place, "iptables", "-t", "mangle", "-F")
            self._delaying.pop(place).kill()

    def kill_all(self) -> None:
        """Kill all processes that are left in the namespaces."""
        for name in self._made:
            found = subprocess.run(["ip", "netns", "pids", name], check=False, capture_output=True, text=True)
            for pid in found.stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), 9)

    def __enter__(self) -> Self:
        try:
            self.build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def build(self) -> None:
        """Make the namespaces and their cables."""
        raise NotImplementedError

    def __exit__(self, *_: Any) -> None:
        for process in self._delaying.values():
            process.kill()
        self.kill_all()
        for name in reversed(self._made):
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


class Inside:
    """A process in a namespace; its lines are recorded with the times at which they came."""

    def __init__(self, networks: Namespaces, place: str, *command: Any, **variables: str) -> None:
        paths = [str(Path(__file__).parent), *sys.path]
        environment = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", networks.name(place), sys.executable, "-m", *map(str, command)],
            env=environment | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"} | variables,
            stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self.lines: list[tuple[float, str]] = []
        self._ended = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.lines.append((time.monotonic(), line))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait(self, count: int, timeout_s: float) -> str:
        """Wait for a number of lines, and return the last of them."""
        with self._changed:
            self._changed.wait_for(lambda: len(self.lines) >= count or self._ended, timeout_s)
            assert len(self.lines) >= count, self.lines
            return self.lines[count - 1][1]

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, 9)
        self.process.wait()
        self._thread.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


def hold(seconds: float) -> None:
    """Hold each packet of the kernel's queue 0, in order; see ``nfnetlink_queue.h`` of Linux."""
    packet, verdict_of_all, configuration = (3 << 8 | number for number in (0, 3, 2))  # of the queue's subsystem
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12) as queue:
        queue.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)

        def send(kind: int, *attributes: tuple[int, bytes]) -> None:
            body = struct.pack("=BBH", 0, 0, 0)
            for attribute, value in attributes:
                body += struct.pack("=HH", 4 + len(value), attribute) + value + bytes(-len(value) % 4)
            queue.send(struct.pack("=IHHII", 16 + len(body), kind, 1, 0, 0) + body)

        send(configuration, (1, struct.pack(">BBH", 1, 0, 0)))  # bind
        send(configuration, (2, struct.pack(">IB", 0, 1)))  # numbers of packets, not their content
        send(configuration, (3, struct.pack(">I", 1 << 16)))  # most packets in the queue
        segments = struct.pack(">I", 1 << 2)
        send(configuration, (4, segments), (5, segments))  # do not split large packets of the sender
        print("delays", flush=True)  # noqa: T201 - the caller reads this
        waiting: deque[tuple[float, int]] = deque()
        while True:
            left_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
            if select.select([queue], [], [], left_s)[0]:
                messages, at = queue.recv(1 << 16), 0
                while at < len(messages):
                    size, kind = struct.unpack_from("=IH", messages, at)
                    if kind == packet:  # its number is the first attribute
                        (number,) = struct.unpack_from(">I", messages, at + 24)
                        waiting.append((time.monotonic() + seconds, number))
                    at += size + -size % 4
            last = None
            while waiting and waiting[0][0] <= time.monotonic():
                last = waiting.popleft()[1]
            if last is not None:
                send(verdict_of_all, (2, struct.pack(">II", 1, last)))  # accept this packet and those before


if __name__ == "__main__":
    hold(float(sys.argv[1]))

"""The actors of the conformance kit, in a separate module, so that any process can import them."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import chimera
from chimera.core import call
from chimera.core.engine import Group
from chimera.core.message import Encoded


class Counter:
    """An actor that records its calls, in order."""

    def __init__(self, start: int = 0) -> None:
        self.seen = [start]

    def add(self, number: int) -> int:
        self.seen.append(number)
        return sum(self.seen)

    def history(self) -> list[int]:
        return self.seen


class BriefCounter(Counter):
    """A counter some of whose calls take little time."""

    brief = frozenset({"history", "fail", "add"})

    def fail(self) -> None:
        raise ValueError("it fails")


class Holder:
    """An actor that holds an array, returns it and changes its own."""

    def __init__(self, array: Any = None) -> None:
        self.array = np.arange(1000, dtype=np.float32) if array is None else array.copy()
        self.kept: Any = None

    def value(self) -> Any:
        return self.array

    def fill(self, number: float) -> None:
        self.array[...] = number

    def keep(self, value: Any) -> None:
        self.kept = value

    def kept_sum(self) -> float:
        return float(np.sum(self.kept))

    def overwrite(self, value: Any, number: float) -> str:
        """Try to write into an argument."""
        try:
            value[...] = number
        except ValueError:
            return "refused"
        return "written"


class Relay:
    """An actor that computes with results of others."""

    def echo(self, value: Any) -> Any:
        return value

    def plus(self, value: Any, number: float = 1.0) -> Any:
        return value + number

    def total(self, *arrays: Any, scale: Any = 1.0) -> Any:
        return sum(arrays) * scale

    def pieces(self, value: Any, count: int) -> list[Any]:
        return np.array_split(value, count)

    def kind(self, value: Any) -> str:
        return type(value).__name__

    def samples(self, count: int) -> None:
        call.work(samples=count)

    def wait_for_ever(self, samples: int) -> None:
        """Hang on an engine in real time; on one in virtual time, take as long as ``samples`` samples."""
        call.work(samples=samples)
        if samples == 0:
            threading.Event().wait()

    def compute(self, samples: int, cpu_s: float) -> None:
        """Declare work, where that takes time, or use the processor for some seconds."""
        call.work(samples=samples)
        until_s = time.thread_time() + cpu_s
        while time.thread_time() < until_s:
            pass

    def compute_for_ever(self, declaring: bool) -> None:
        while True:
            if declaring:
                call.work(samples=0)

    def pid(self) -> int:
        return os.getpid()

    def die(self, *_: Any) -> None:
        """End the actor's process at once."""
        os.kill(os.getpid(), signal.SIGKILL)


class OddError(Exception):
    """An exception class of the user."""

    def __init__(self, code: int, detail: str) -> None:
        super().__init__(code, detail)
        self.code, self.detail = code, detail


class StubbornError(Exception):
    """An exception that cannot be recreated in another process."""

    def __init__(self, lock: Any) -> None:
        super().__init__("stubborn")
        self.lock = lock


class Faulty:
    """Raises."""

    def __init__(self, broken: bool = False) -> None:
        if broken:
            raise OddError(7, "in the constructor")

    def odd(self, code: int, detail: str = "as requested") -> None:
        raise OddError(code, detail)

    def stubborn(self) -> None:
        raise StubbornError(threading.Lock())

    def fine(self, *_: Any) -> str:
        return "fine"


class Member:
    """An actor that is a member of groups."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def _own(self, size: int, shared: bool) -> Any:
        array = call.empty(size) if shared else np.empty(size, np.float32)
        array[...] = np.random.default_rng([self.rank, size]).normal(size=size)
        return array

    def inputs(self, size: int) -> Any:
        return self._own(size, shared=False)

    def reduce(self, group: Group, size: int, op: str, shared: bool = False) -> tuple[Any, bool]:
        """Return the reduced array, and whether it was reduced in place."""
        array = self._own(size, shared)
        result = group.all_reduce(array) if op == "default" else group.all_reduce(array, op)  # type: ignore[arg-type]
        return result, result is array

    def spread(self, group: Group, size: int, root: int) -> tuple[Any, bool]:
        array = self._own(size, shared=False)
        result = group.broadcast(array, root=root)
        return result, result is array

    def repeat(self, group: Group, times: int, size: int) -> Any:
        array = self._own(size, shared=True)
        for turn in range(times):
            group.all_reduce(array, "mean")
            array += self.rank + turn
        return array

    def pair_then_all(self, pair: Group, everyone: Group) -> float:
        array = np.full(3, self.rank, np.float32)
        pair.all_reduce(array, "sum")
        pair.barrier()
        everyone.all_reduce(array, "sum")
        return float(array[0])

    def meet(self, group: Group, samples: int = 0) -> int:
        call.work(samples=samples)
        group.barrier()
        return group.size

    def die_before_meeting(self, group: Group) -> None:
        group.barrier()
        os.kill(os.getpid(), signal.SIGKILL)

    def receive_from_first(self, group: Group) -> Any:
        return group.receive([0])

    def meet_twice(self, group: Group) -> None:
        group.barrier()
        group.barrier()


class Box:
    """An object that contains another."""

    def __init__(self, content: Any) -> None:
        self.content = content


class Caller:
    """An actor that calls other actors by their handles."""

    def __init__(self, *peers: Any) -> None:
        self.peers = peers
        self.refs: list[Any] = []

    def meet(self, *peers: Any) -> None:
        self.peers = peers

    def names(self) -> list[str]:
        return [peer.name for peer in self.peers]

    def ask(self, method: str, *args: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
        """Call all peers, and return their answers."""
        return call.get([getattr(peer, method)(*args, **kwargs) for peer in self.peers], timeout_s)

    def ask_in(self, place: Any, method: str, *args: Any) -> Any:
        """Call the actor in a box in a list in a dictionary."""
        return call.get(getattr(place["here"][0].content, method)(*args))

    def tell(self, method: str, numbers: Any) -> None:
        """Call the first peer many times without waiting."""
        for number in numbers:
            getattr(self.peers[0], method)(number)

    def keep(self, method: str, *args: Any) -> None:
        """Call the first peer, and keep the ref."""
        self.refs = [getattr(self.peers[0], method)(*args)]

    def kept(self) -> Any:
        return call.get(self.refs)

    def pass_on(self, value: Any) -> Any:
        """Send a value through all peers, each of which adds one; this actor receives the last result only."""
        for peer in self.peers:
            value = peer.plus(value, number=1.0)
        return call.get(value)

    def split(self, value: Any, count: int) -> Any:
        pieces = self.peers[0].pieces(value, count, returns=count)
        return call.get(self.peers[1].total(*pieces))

    def nest(self) -> Any:
        return call.get(self.peers[0].echo([self.peers[0].echo(1)]))

    def error_of(self, method: str, *args: Any, timeout_s: float | None = None) -> tuple[str, str, str]:
        """Return name, text and cause of the exception that the first peer raises."""
        try:
            self.ask(method, *args, timeout_s=timeout_s)
        except Exception as error:
            return type(error).__name__, str(error), str(error.__cause__)
        return "", "", ""

    def call_itself(self) -> None:
        self.keep("names")
        self.kept()


class Puller:
    """A worker of a sharded parameter server that needs no driver."""

    def __init__(self, servers: list[Any]) -> None:
        self.servers = servers
        self.first = chimera.get([server.value() for server in servers])

    def train(self, steps: int) -> Any:
        """Pull all shards and push as many ones, several times; return the last weights that this worker pulled."""
        weights = self.first
        for _ in range(steps):
            for server, shard in zip(self.servers, weights, strict=True):
                server.add(np.ones_like(shard))
            weights = chimera.get([server.value() for server in self.servers])
        return weights


class Shard:
    """A slice of weights."""

    def __init__(self, size: int) -> None:
        self.weights = np.zeros(size, np.float32)

    def value(self) -> Any:
        return self.weights

    def add(self, gradient: Any) -> None:
        self.weights = self.weights + gradient


LARGE = 500_000
"""Number of elements of an array of a `Party`."""


class Party:
    """An actor that creates arrays, keeps arrays of others, and reports where they are."""

    def __init__(self) -> None:
        self.kept, self.number = np.zeros(1, np.float32), 0.0

    def pid(self) -> int:
        return os.getpid()

    def random(self, seed: int) -> Any:
        return np.random.default_rng(seed).random(LARGE, np.float32)

    def filled(self, number: float) -> Any:
        return np.full(LARGE, number, np.float32)

    def message(self, seed: int) -> Encoded:
        return Encoded("none", LARGE, (self.random(seed),), {"scale": 2.0})

    def plus_one(self, value: Any) -> Any:
        return value + np.float32(1)

    def keep(self, value: Any, number: float) -> bool:
        self.kept, self.number = value, number
        return self.is_kept()

    def is_kept(self) -> bool:
        return bool(np.all(self.kept == self.number))

    def all_are(self, number: float, *values: Any) -> bool:
        return all(bool(np.all(value == number)) for value in values)

    def shares(self, value: Any) -> bool:
        return lies_in_shared_memory(value)

    def unfit(self, _: Any) -> Any:
        return socket.socket()  # cannot be sent


def lies_in_shared_memory(array: Any) -> bool:
    """Return whether an array is in the driver's file, not in Ray's store or in memory of this process alone."""
    at = array.__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(part, 16) for part in line.split()[0].split("-"))
        if first <= at < last:
            return "memfd:chimera" in line
    return False

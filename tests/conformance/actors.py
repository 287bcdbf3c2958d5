"""The actors of the conformance kit. They stand in a module of their own, so that any process can import them."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import numpy as np

from chimera.core import call
from chimera.core.engine import Group


class Counter:
    """Remembers what it was called with, in order."""

    def __init__(self, start: int = 0) -> None:
        self.seen = [start]

    def add(self, number: int) -> int:
        self.seen.append(number)
        return sum(self.seen)

    def history(self) -> list[int]:
        return self.seen


class Holder:
    """Holds an array, gives it away and changes its own."""

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
    """Computes on what others made."""

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
        """Hang, on an engine whose time is real; on one whose time is virtual, last as long as ``samples`` do."""
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
        """End its own process without a word."""
        os.kill(os.getpid(), signal.SIGKILL)


class OddError(Exception):
    """An exception of the user's own."""

    def __init__(self, code: int, detail: str) -> None:
        super().__init__(code, detail)
        self.code, self.detail = code, detail


class StubbornError(Exception):
    """An exception that cannot be made again elsewhere."""

    def __init__(self, lock: Any) -> None:
        super().__init__("stubborn")
        self.lock = lock


class Faulty:
    """Raises."""

    def __init__(self, broken: bool = False) -> None:
        if broken:
            raise OddError(7, "in the constructor")

    def odd(self, code: int, detail: str = "as told") -> None:
        raise OddError(code, detail)

    def stubborn(self) -> None:
        raise StubbornError(threading.Lock())

    def fine(self, *_: Any) -> str:
        return "fine"


class Member:
    """Meets others in groups."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def _own(self, size: int, shared: bool) -> Any:
        array = call.empty(size) if shared else np.empty(size, np.float32)
        array[...] = np.random.default_rng([self.rank, size]).normal(size=size)
        return array

    def inputs(self, size: int) -> Any:
        return self._own(size, shared=False)

    def reduce(self, group: Group, size: int, op: str, shared: bool = False) -> tuple[Any, bool]:
        """Return the reduced array, and whether that happened in place."""
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

    def meet_twice(self, group: Group) -> None:
        group.barrier()
        group.barrier()

"""The actors of the kit that exchange messages in groups, in a separate module, so that any process can import them."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import Any

import numpy as np

from chimera.core import call
from chimera.core.engine import Group
from chimera.core.message import Encoded

SERVER = 0


@dataclass
class Note:
    """A small value that is neither an array nor an encoded message."""

    step: int
    text: str
    array: Any


def wrapped(kind: str, array: Any, step: int) -> Any:
    """Return a value of one kind around an array and a number."""
    if kind == "encoded":
        return Encoded("kit", array.size, (array, np.arange(step % 3)), {"step": float(step)})
    if kind == "plain":
        return Note(step, "é" * step, array), (None, {"step": step}, [2.5, b"bytes"])
    return array


def unwrapped(kind: str, value: Any, step: int) -> Any:
    """Check a value of `wrapped`, and return its array."""
    if kind == "encoded":
        assert (type(value), value.codec, value.size) == (Encoded, "kit", value.arrays[0].size)
        assert value.arrays[1].tolist() == list(range(step % 3))
        assert value.meta == {"step": float(step)}
        return value.arrays[0]
    if kind == "plain":
        note, rest = value
        assert (note.step, note.text) == (step, "é" * step)
        assert rest == (None, {"step": step}, [2.5, b"bytes"])
        return note.array
    return value


class Correspondent:
    """A member of groups; in most methods, member 0 is the server of the others."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def own(self, size: int, kind: str) -> Any:
        array = call.empty(size) if kind == "shared" else np.empty(size, np.float32)
        array[...] = np.random.default_rng([self.rank, size]).normal(size=size)
        return array

    def serve(self, group: Group, size: int, steps: int, kind: str) -> Any:
        """Send weights to all workers and subtract their gradients, several times; return the weights."""
        workers, weights = range(1, group.size), self.own(size, kind)
        for step in range(steps):
            group.send(dict.fromkeys(workers, wrapped(kind, weights, step)))
            found = group.receive(workers)
            assert list(found) == [*workers]
            for worker in workers:
                weights -= unwrapped(kind, found[worker], step)
            call.work(samples=1)
        return weights

    def train(self, group: Group, size: int, steps: int, kind: str) -> None:
        """Answer each weights of the server by a gradient."""
        gradient = self.own(size, kind)
        for step in range(steps):
            weights = unwrapped(kind, group.receive([SERVER])[SERVER], step)
            call.work(samples=self.rank)
            np.multiply(weights, self.rank / 8, out=gradient)
            group.send({SERVER: wrapped(kind, gradient, step)})

    def train_in_parts(self, group: Group, size: int, steps: int, kind: str) -> None:
        """Work as `train` does, with a row for each step."""
        gradient = self.own(size, kind)
        for step in range(steps):
            began_s = call.now()
            np.multiply(unwrapped(kind, group.receive([SERVER])[SERVER], step), self.rank / 8, out=gradient)
            call.work(samples=self.rank)
            group.send({SERVER: wrapped(kind, gradient, step)})
            call.record("step" if step % 2 else "even step", began_s)
        call.work(samples=100)

    def exchange(self, group: Group, size: int) -> tuple[float, bool]:
        """Send a large array to the other member, and receive its array; return an element, and whether all are equal."""
        other = 1 - self.rank
        array = np.full(size, self.rank + 1, np.float32)
        group.send({other: array})
        found = group.receive([other])[other]
        return float(found[0]), bool(np.all(found == found[0]))

    def write(self, group: Group, kind: str) -> str:
        """Try to write into a received array."""
        array = unwrapped(kind, group.receive([SERVER])[SERVER], 0)
        try:
            array[...] = 0
        except ValueError:
            return "refused"
        return "written"

    def send_one(self, group: Group, kind: str) -> None:
        group.send({other: wrapped(kind, self.own(5, kind), 0) for other in range(group.size) if other != self.rank})

    def take_first_twice(self, group: Group) -> list[dict[int, Any]]:
        """Receive from the first of two workers, then allow the other to send."""
        first = group.receive([1, 2], count=1)
        group.send({2 if 1 in first else 1: "go"})
        return [first, group.receive([1, 2], count=1)]

    def answer(self, group: Group, waits: bool) -> None:
        if waits:
            group.receive([SERVER])
        group.send({SERVER: self.rank})

    def wait_for(self, group: Group, other: int) -> Any:
        return group.receive([other])[other]

    def receive(self, group: Group, ranks: list[int], count: int | None) -> dict[int, Any]:
        return group.receive(ranks, count)

    def wait_twice(self, group: Group) -> Any:
        """Receive one value from the server; return it, and the exception of the second try."""
        value = group.receive([SERVER])[SERVER]
        try:
            group.receive([SERVER])
        except Exception as error:
            return value, type(error).__name__, str(error)
        return value, "", ""

    def send_and_end(self, group: Group, by_signal: bool, value: Any) -> None:
        """Send a value to all others, if there is one, and end this actor."""
        if value is not None:
            group.send(dict.fromkeys(range(1, group.size), value))
        if by_signal:
            os.kill(os.getpid(), signal.SIGKILL)
        raise SystemExit

    def relay(self, one: Group, two: Group, steps: int) -> float:
        """Pass numbers from member 1 of one group to member 1 of the other, and answer both."""
        total = 0.0
        for _ in range(steps):
            value = one.receive([1])[1]
            two.send({1: value + 1})
            total += two.receive([1])[1]
            one.send({1: total})
        return total

    def ask(self, group: Group, steps: int) -> list[float]:
        answers = []
        for step in range(steps):
            group.send({SERVER: np.float32(step)})
            answers.append(group.receive([SERVER])[SERVER])
        return answers

    def double(self, group: Group, steps: int) -> None:
        for _ in range(steps):
            group.send({SERVER: 2 * group.receive([SERVER])[SERVER]})

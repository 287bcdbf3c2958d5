"""A run in virtual time whose computations and messages are recorded."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from chimera import Dataset, Trainer
from chimera.engines.simulated.call import Call
from chimera.engines.simulated.execution import Execution
from chimera.engines.simulated.group import SimulatedGroup
from chimera.engines.simulated.models.network import Connections, PlacedPort, Port

FEATURES, CLASSES = 16, 4


@dataclass(frozen=True)
class Work:
    """A computation of an actor, in seconds of virtual time; ``samples`` is 0 for work on vectors."""

    actor: str
    call: str
    begin_s: float
    end_s: float
    samples: int


@dataclass(frozen=True)
class Message:
    """A transfer of values from one actor to another, in seconds of virtual time."""

    sender: str
    receiver: str
    leaves_s: float
    arrives_s: float
    nbytes: int


@dataclass
class Recording:
    """What happened in a run: computations, messages, and the part of each member in each collective."""

    works: list[Work] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    collectives: list[Work] = field(default_factory=list)


def record(settings: Mapping[str, Any]) -> Recording:
    """Train on random rows on the simulated engine, and return what happened. The rows do not change the times."""
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((512, FEATURES), dtype=np.float32)
    data = Dataset(inputs, rng.integers(0, CLASSES, len(inputs)).astype(np.int64), tuple("abcd"))
    recording = Recording()
    with tempfile.TemporaryDirectory() as folder, _listening(recording):
        Trainer(data=data, out=Path(folder) / "run", **settings).fit()
    return recording


@contextmanager
def _listening(recording: Recording) -> Iterator[None]:
    """Record what simulated engines do within the block. The trace of a run has no senders and no parts of calls."""
    names: dict[Port, str] = {}
    connect, charge, count = Connections.port, Execution.charge, SimulatedGroup._count_bytes

    def port(self: Connections, name: str, device: Any) -> Port:
        made = connect(self, name, device)
        names[made] = name
        return made

    def charged(self: Execution) -> Call | None:
        call = self.running
        before = (call.clock_s, call.samples) if call else (0.0, 0)
        charge(self)
        if call and call.clock_s > before[0]:
            work = Work(call.node.name, call.method, before[0], call.clock_s, call.samples - before[1])
            recording.works.append(work)
        return call

    def counted(self: SimulatedGroup, call: Call, name: str, detail: str | int, size: int) -> None:
        begin_s = call.clock_s - self._cost_s(name, size)
        recording.collectives.append(Work(call.node.name, name, begin_s, call.clock_s, 0))
        count(self, call, name, detail, size)

    with ExitStack() as stack:
        stack.enter_context(patch.object(Connections, "port", port))
        stack.enter_context(patch.object(Execution, "charge", charged))
        stack.enter_context(patch.object(SimulatedGroup, "_count_bytes", counted))
        for kind in (Port, PlacedPort):
            stack.enter_context(patch.object(kind, "send", _recorded(kind, names, recording.messages)))
        yield


def _recorded(kind: type[Port], names: Mapping[Port, str], messages: list[Message]) -> Any:
    """Return the method ``send`` of a kind of port, which also records the message."""
    plain = kind.send

    def send(self: Port, receiver: Port, size: int, ready_s: float) -> float:
        arrives_s = plain(self, receiver, size, ready_s)
        if type(self) is kind:  # a placed port may call the other method
            messages.append(Message(names[self], names[receiver], ready_s, arrives_s, size))
        return arrives_s

    return send

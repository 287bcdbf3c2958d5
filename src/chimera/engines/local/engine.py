"""The driver side of the local engine: actors are processes forked from a server that has already imported large libraries."""

from __future__ import annotations

import dataclasses
import functools
import secrets
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from chimera.core.engine import ENGINES, Disturbance, Resources
from chimera.core.errors import ActorLost, ConfigurationError, TimeLimitError
from chimera.core.trace import TraceRow
from chimera.engines.handle import CONSTRUCT, check_returns, receive_handles
from chimera.engines.local.calls import Calls
from chimera.engines.local.group import GroupHandle
from chimera.engines.local.process import SPIN_S
from chimera.engines.local.refs import Channel, LocalActor, Ref
from chimera.engines.local.relay import Relay
from chimera.engines.local.ring_buffers import ROWS
from chimera.engines.local.server import Deaths, Servers, end
from chimera.engines.real_time import RealTime
from chimera.engines.shared_memory.memory import (
    ACTORS,
    DONE_NS,
    DRIVER,
    MAX_ACTORS,
    NAME_AT,
    NAME_BYTES,
    ROWS_WRITTEN,
    SLOT_WORDS,
    Memory,
    create_file,
    fence,
)
from chimera.engines.shared_memory.notifier import Notifier
from chimera.engines.shared_memory.result_slots import read_value

_MIRRORED = ("numpy", "torch", "sklearn")


@ENGINES.register("local")
class Local(RealTime):
    """An engine of processes on this machine, which exchange values through shared memory.

    Parameters
    ----------
    preload : modules that the fork server imports before actors start; default: numpy, torch and sklearn, if the driver has
        imported them.
    """

    def __init__(self, *, preload: Sequence[str] | None = None) -> None:
        super().__init__()
        modules = [m for m in _MIRRORED if m in sys.modules] if preload is None else list(preload)
        self._memory = Memory(create_file(), DRIVER)
        self._notifier = Notifier(self._memory)
        self._channels: list[Channel] = []
        self._calls = Calls(self._memory, self._notifier, self._channels, self._began_s)
        self._handles: list[LocalActor] = []
        self._memory.own.words[ACTORS] = 1
        self.key = f"local-{secrets.token_hex(6)}"
        self._memory.own.bytes[NAME_AT : NAME_AT + len(self.key)] = self.key.encode()
        receive_handles(self)
        self._relay = Relay(self._calls, self._memory, self._notifier, self._channels)
        self._deaths: list[Channel] = []
        deaths = Deaths(self._channels, self._deaths, self._notifier, self._relay.wake)
        self._servers = Servers(modules, self._relay.actor_socket, self._memory.fd, deaths)
        self._relay.start()
        self._end = weakref.finalize(self, end, self._servers, self._relay, self._memory)

    def reserve(self, resources: Sequence[Resources], timeout_s: float | None = None) -> None:
        """Do nothing: this engine has no limit to reserve from."""

    def spawn(
        self,
        actor_type: Callable[..., Any],
        /,
        *args: Any,
        resources: Resources | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> LocalActor:
        """Fork a process for the actor and return its handle at once."""
        self._check_open()
        actor = len(self._channels) + 1
        if actor >= MAX_ACTORS:
            raise ConfigurationError(
                f"the local engine runs {MAX_ACTORS - 1} actors at most; the simulated one runs thousands"
            )
        channel = Channel(self._memory, actor, name or f"actor {actor - 1}", actor - 1)
        encoded = channel.name.encode()[:NAME_BYTES]
        channel.region.bytes[NAME_AT : NAME_AT + len(encoded)] = encoded
        self._memory.own.words[ACTORS] = actor + 1
        self._channels.append(channel)
        handle = LocalActor(self, channel)
        self._handles.append(handle)
        self.call(channel, CONSTRUCT, actor_type, *args, **kwargs)
        wanted = resources or Resources()
        process = {"name": channel.name, "threads": wanted.threads, "memory_mb": wanted.memory_mb, "path": sys.path}
        self._servers.spawn(channel, {"spawn": actor, **process})
        return handle

    def put(self, value: Any) -> Ref:
        """Copy a value into shared memory, once."""
        self._check_open()
        return self._calls.put(value)

    def get(self, refs: Any, timeout_s: float | None = None) -> Any:
        """Return the value of a ref, or the values of a sequence; arrays are read-only views of shared memory."""
        self._check_open()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        if isinstance(refs, Sequence):
            return [self._value(ref, deadline) for ref in refs]
        return self._value(refs, deadline)

    def wait(self, refs: Iterable[Ref], count: int = 1, timeout_s: float | None = None) -> tuple[list[Ref], list[Ref]]:
        """Return (done, pending) once ``count`` refs are done or the time is over."""
        self._check_open()
        pending = list(refs)
        done: list[Ref] = []
        count = min(count, len(pending))

        def enough() -> bool:
            nonlocal pending
            self._calls.send_backlogs()
            left: list[Ref] = []
            for ref in pending:
                (done if ref.channel.ready(ref) or ref.channel.dead else left).append(ref)
            pending = left
            return len(done) >= count

        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._notifier.await_calls(enough, _calls_of(pending, count == len(pending)), SPIN_S, deadline)
        return sorted(done, key=_done_at), pending

    def group(self, actors: Sequence[LocalActor]) -> GroupHandle:
        """Make a group of these actors, in rank order."""
        self._check_open()
        return GroupHandle(self._memory, [actor._channel.actor for actor in actors])

    def kill(self, actor: LocalActor) -> None:
        """Kill the actor's process, and return when it is gone."""
        self._check_open()
        self._servers.request({"kill": actor._channel.actor})
        self._notifier.await_calls(lambda: actor._channel.dead, {}, SPIN_S)  # a death wakes all waiting processes

    def disturb(self, actor: LocalActor, disturbance: Disturbance) -> None:
        """Stop the actor's process, once or repeatedly; return when the disturbance has begun."""
        self._check_open()
        channel = actor._channel
        begun = channel.disturbed + 1
        self._servers.request({"disturb": channel.actor, **dataclasses.asdict(disturbance)})
        self._notifier.await_calls(lambda: channel.dead or channel.disturbed >= begun, {}, SPIN_S)

    def silent(self, after_s: float) -> list[LocalActor]:
        """Return the handles of the living actors without a heartbeat for ``after_s`` seconds."""
        return [
            self._handles[channel.rank]
            for channel in self._channels
            if not channel.dead and channel.silent_s() >= after_s
        ]

    def trace(self) -> list[TraceRow]:
        """Return the rows of the calls that ended since the last `trace`."""
        with self._calls.lock:
            return [row for channel in self._channels for row in channel.trace(self._began_s)]

    def lost(self) -> list[LocalActor]:
        """Return the handles of the dead actors, in the order of their deaths."""
        return [self._handles[channel.rank] for channel in self._deaths]

    def close(self) -> None:
        """Kill all processes and release the shared memory. Arrays that were fetched stay valid."""
        for channel in (self._calls.own, *self._channels):
            channel.closed = True
        super().close()

    def call(self, channel: Channel, method: str, /, *args: Any, returns: int | None = None, **kwargs: Any) -> Any:
        """Issue a call. Methods of handles call this."""
        self._check_open()
        if returns is not None:
            check_returns(returns, channel.name, method)
        calls = self._calls
        while channel.issued - channel.rows_read >= ROWS and not calls.has_room(channel):
            self._await_end(channel, channel.rows_read + 1)
        while channel.is_full and (in_flight := calls.calls_to_await(channel)):
            self._await_end(channel, channel.issued - in_flight // 2)
        with calls.lock:
            arguments = calls.arguments(args, kwargs, channel)
            outs = [channel.new_slot()] if returns is None else channel.new_slots(returns)
            refs = calls.issue(channel, method, returns, outs, *arguments)
        return refs[0] if returns is None else refs

    def handle(self, actor: int, _: str) -> LocalActor:
        """Return the driver's handle on an actor, for a pickled handle that an actor returned."""
        return self._handles[actor - 1]

    def place(self, channel: Channel) -> tuple[int, str]:
        """Return the arguments of `handle`, which are pickled with a handle."""
        return channel.actor, channel.name

    def _value(self, ref: Ref, deadline: float | None) -> Any:
        channel = ref.channel

        def known() -> bool:
            self._calls.send_backlogs()
            return channel.ready(ref) or channel.dead

        if not self._notifier.await_calls(known, {channel.actor: ref.number + 1}, SPIN_S, deadline):
            raise TimeLimitError(f"{ref.call!r} of {channel.name} did not end within its time limit")
        fence()
        if not channel.ready(ref):
            raise ActorLost(f"{channel.name} died; its call {ref.call!r} has no result")
        # The value's arrays hold the ref, and so the block, until they are deleted.
        value, failed = read_value(self._memory, channel.actor, ref.slot, release=functools.partial(_keep, ref))
        if failed:
            raise value.exception()
        return value

    def _await_end(self, channel: Channel, count: int) -> None:
        """Wait until ``count`` of an actor's calls have ended or the actor is dead."""
        region = channel.region

        def ended() -> bool:
            self._calls.send_backlogs()
            return region.words[ROWS_WRITTEN] >= count or channel.dead

        self._notifier.await_calls(ended, {channel.actor: count}, SPIN_S)


def _keep(ref: Ref) -> None:
    """Do nothing. A partial of this function keeps the ref alive."""


def _calls_of(refs: Iterable[Ref], all_of_them: bool) -> dict[int, int]:
    """Return, for each actor of the refs, the number of its calls after which the first (or last) of its refs is done."""
    calls: dict[int, int] = {}
    for ref in refs:
        actor, count = ref.channel.actor, ref.number + 1
        calls[actor] = (max if all_of_them else min)(calls.get(actor, count), count)
    return calls


def _done_at(ref: Ref) -> float:
    if ref.channel.ready(ref):
        return ref.channel.region.slots[ref.slot * SLOT_WORDS + DONE_NS] / 1e9
    return ref.channel.died_s or 0.0

"""The local engine's driver side: actors are processes forked from a server that has imported the heavy libraries already."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from chimera.core.engine import ENGINES, Resources
from chimera.core.errors import ActorLost, ConfigurationError, EngineClosedError, TimeLimitError
from chimera.core.trace import TraceRow
from chimera.engines.local.doorbell import Doorbell, bind
from chimera.engines.local.group import GroupHandle
from chimera.engines.local.memory import (
    ACTORS,
    DEAD,
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
from chimera.engines.local.process import CONSTRUCT, SPIN_S, Arrived, publish, read_value, write_value
from chimera.engines.local.refs import Lane, LocalActor, Ref
from chimera.engines.local.rings import ROWS, write_call
from chimera.engines.local.values import Packed

_INLINE_BYTES = 1 << 14
_MIRRORED = ("numpy", "torch", "sklearn")
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@ENGINES.register("local")
class Local:
    """Processes on this machine; values travel through shared memory.

    Parameters
    ----------
    preload : modules that the actors' processes have imported before they start; by default those of the heavy libraries
        that the driver itself has imported.
    """

    def __init__(self, *, preload: Sequence[str] | None = None) -> None:
        self._began_s = time.monotonic()
        modules = [m for m in _MIRRORED if m in sys.modules] if preload is None else list(preload)
        self._folder = Path(tempfile.mkdtemp(prefix="chimera-"))
        self._memory = Memory(create_file(), DRIVER)
        self._doorbell = Doorbell(self._folder, bind(self._folder, DRIVER), self._memory)
        self._own = Lane(self._memory, DRIVER, "driver", -1)
        self._lanes: list[Lane] = []
        self._handles: list[LocalActor] = []
        self._memory.own.words[ACTORS] = 1
        self._control, theirs = socket.socketpair()
        with theirs:
            self._server = _start_server(modules, theirs, self._memory.fd, self._folder)
        self._deaths: list[Lane] = []
        state = self._control, self._lanes, self._deaths, self._doorbell
        self._monitor = threading.Thread(target=_monitor, args=state, name="chimera-monitor", daemon=True)
        self._monitor.start()
        parts = self._server, self._control, self._monitor, self._folder, self._doorbell, self._memory
        self._end = weakref.finalize(self, _end, *parts)

    def reserve(self, resources: Sequence[Resources]) -> None:
        """Nothing to do: there is always room."""

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
        actor = len(self._lanes) + 1
        if actor >= MAX_ACTORS:
            raise ConfigurationError(
                f"the local engine runs {MAX_ACTORS - 1} actors at most; the simulated one runs thousands"
            )
        lane = Lane(self._memory, actor, name or f"actor {actor - 1}", actor - 1)
        encoded = lane.name.encode()[:NAME_BYTES]
        lane.region.bytes[NAME_AT : NAME_AT + len(encoded)] = encoded
        self._memory.own.words[ACTORS] = actor + 1
        self._lanes.append(lane)
        handle = LocalActor(self, lane)
        self._handles.append(handle)
        self.call(lane, CONSTRUCT, actor_type, *args, **kwargs)
        request = {"spawn": actor, "name": lane.name, "threads": (resources or Resources()).threads}
        self._request(request)
        return handle

    def put(self, value: Any) -> Ref:
        """Copy a value into shared memory, once."""
        self._check_open()
        slot, generation = self._own.new_slot()
        write_value(self._memory, slot, generation, Packed(value))
        publish(self._memory, slot, generation)
        return Ref(self._own, slot, generation, "put")

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
            self._send_backlogs()
            known = [ref.lane.ready(ref) or ref.lane.dead for ref in pending]
            done.extend(ref for ref, is_known in zip(pending, known, strict=True) if is_known)
            pending = [ref for ref, is_known in zip(pending, known, strict=True) if not is_known]
            return len(done) >= count

        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._doorbell.await_(enough, {ref.lane.actor for ref in pending}, SPIN_S, deadline)
        return sorted(done, key=_done_at), pending

    def group(self, actors: Sequence[LocalActor]) -> GroupHandle:
        """Make a group of these actors, in rank order."""
        self._check_open()
        return GroupHandle(self._memory, [actor._lane.actor for actor in actors])

    def kill(self, actor: LocalActor) -> None:
        """Kill the actor's process, and return when it is gone."""
        self._check_open()
        self._request({"kill": actor._lane.actor})
        self._doorbell.await_(lambda: actor._lane.dead, [actor._lane.actor], SPIN_S)

    def now(self) -> float:
        """Seconds since the engine began."""
        return time.monotonic() - self._began_s

    def trace(self) -> list[TraceRow]:
        """Return the rows of the calls that ended since the last time."""
        return [row for lane in self._lanes for row in lane.trace(self._began_s)]

    def lost(self) -> list[LocalActor]:
        """Return the handles of the dead, in the order of their deaths."""
        return [self._handles[lane.rank] for lane in self._deaths]

    def close(self) -> None:
        """Kill all processes and let go of the shared memory. Arrays that were fetched stay."""
        for lane in (self._own, *self._lanes):
            lane.closed = True
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def call(self, lane: Lane, method: str, /, *args: Any, returns: int | None = None, **kwargs: Any) -> Any:
        """Issue a call; the handle's methods lead here."""
        self._check_open()
        if lane.issued - lane.rows_read >= ROWS:
            self._await_row(lane)
        if returns is not None and returns < 1:
            raise ConfigurationError(f"{method!r} of {lane.name}: returns must be at least 1, not {returns}")
        outs = [lane.new_slot() for _ in range(returns or 1)]
        refs = [Ref(lane, slot, generation, method) for slot, generation in outs]
        given = tuple([self._arrival(a, lane) if type(a) is Ref else a for a in args])
        named = {k: self._arrival(a, lane) if type(a) is Ref else a for k, a in kwargs.items()}
        message = Packed((lane.issued, method, returns, outs, given, named))
        if message.buffers or len(message.stream) > _INLINE_BYTES:
            arguments = self.put((given, named))
            message = Packed((lane.issued, method, returns, outs, self._arrival(arguments, lane), None))
        lane.issued += 1
        lane.calls.append(method)
        if lane.backlog or not write_call(lane.region, message.stream):
            lane.backlog.append(message.stream)
        fence()
        if self._memory.own.waiting[lane.actor]:
            self._doorbell.ring(lane.actor)
        return refs[0] if returns is None else refs

    def _arrival(self, ref: Ref, lane: Lane) -> Arrived:
        """Count one more reader of a ref's value, and return what stands for it in a message."""
        region, place = ref.lane.region, ref.slot * MAX_ACTORS + lane.actor
        region.issued[place] = (region.issued[place] + 1) & 0xFFFF
        return Arrived(ref.lane.actor, ref.slot, ref.generation)

    def _value(self, ref: Ref, deadline: float | None) -> Any:
        lane = ref.lane

        def known() -> bool:
            self._send_backlogs()
            return lane.ready(ref) or lane.dead

        if not self._doorbell.await_(known, [lane.actor], SPIN_S, deadline):
            raise TimeLimitError(f"{ref.call!r} of {lane.name} did not end within its time limit")
        fence()
        if not lane.ready(ref):
            raise ActorLost(f"{lane.name} died; its call {ref.call!r} has no result")
        # The value's arrays keep the ref, and with it the block, for as long as they live.
        value, failed = read_value(self._memory, lane.actor, ref.slot, release=functools.partial(_keep, ref))
        if failed:
            raise value.exception()
        return value

    def _await_row(self, lane: Lane) -> None:
        """Wait until the ring of rows has room: no more calls may be on the way than it has places."""
        region = lane.region

        def room() -> bool:
            self._send_backlogs()
            return region.words[ROWS_WRITTEN] > lane.rows_read or lane.dead

        self._doorbell.await_(room, [lane.actor], SPIN_S)
        lane.keep_rows(self._began_s)

    def _send_backlogs(self) -> None:
        for lane in self._lanes:
            while lane.backlog and write_call(lane.region, lane.backlog[0]):
                lane.backlog.popleft()
                self._doorbell.ring(lane.actor)

    def _request(self, request: dict[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):  # the server died: the monitor counts every actor as lost
            self._control.sendall(json.dumps(request).encode() + b"\n")

    def _check_open(self) -> None:
        if not self._end.alive:
            raise EngineClosedError("the local engine is closed")


def _keep(ref: Ref) -> None:
    """Hold a ref for as long as this call of it is held."""


def _done_at(ref: Ref) -> float:
    if ref.lane.ready(ref):
        return ref.lane.region.slots[ref.slot * SLOT_WORDS + DONE_NS] / 1e9
    return ref.lane.died_s or 0.0


def _start_server(modules: list[str], control: socket.socket, memory_fd: int, folder: Path) -> subprocess.Popen[bytes]:
    options = {
        "path": sys.path,
        "preload": modules,
        "control": control.fileno(),
        "memory": memory_fd,
        "folder": str(folder),
    }
    threads = {name: os.environ.get(name, "1") for name in _THREAD_VARIABLES}
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "chimera.engines.local.forkserver", json.dumps(options)],
        stdin=subprocess.DEVNULL,
        pass_fds=(control.fileno(), memory_fd),
        env={**os.environ, **threads, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        start_new_session=True,
    )


def _monitor(control: socket.socket, lanes: list[Lane], deaths: list[Lane], doorbell: Doorbell) -> None:
    """Note the deaths that the fork server reports, and wake everybody, for anybody may be waiting for the dead."""
    received = b""
    while True:
        try:
            data = control.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            break
        *lines, received = (received + data).split(b"\n")
        _mark_dead([lanes[json.loads(line)["actor"] - 1] for line in lines], lanes, deaths, doorbell)
    _mark_dead([lane for lane in lanes if not lane.dead], lanes, deaths, doorbell)


def _mark_dead(dead: list[Lane], lanes: list[Lane], deaths: list[Lane], doorbell: Doorbell) -> None:
    for lane in dead:
        lane.died_s = time.monotonic()
        deaths.append(lane)
        lane.region.words[DEAD] = 1
    for actor in range(len(lanes) + 1):
        doorbell.ring(actor)


def _end(
    server: subprocess.Popen[bytes],
    control: socket.socket,
    monitor: threading.Thread,
    folder: Path,
    doorbell: Doorbell,
    memory: Memory,
) -> None:
    with contextlib.suppress(OSError):
        control.shutdown(socket.SHUT_RDWR)
    try:
        server.wait(timeout=10)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
    monitor.join()
    control.close()
    doorbell.close()
    memory.close()
    shutil.rmtree(folder, ignore_errors=True)

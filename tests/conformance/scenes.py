"""Runs of an engine in a separate process, which then reports what is left.

Usage: ``python -m conformance.scenes WORLD SCENE``.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from chimera.core.engine import Disturbance, Engine
from chimera.core.errors import ActorLost, RunError
from conformance.actors import Caller, Faulty, Member, OddError, Relay
from conformance.worlds import World, world_named

CLOSED_WITHIN_S = 10.0


def footprint() -> dict[str, list[Any]]:
    """Return the processes below this one, and the files in shared memory that they and this one use."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    files: set[str] = set()
    for process in processes:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines():
                if "/dev/shm/" in line:
                    files.add(line[line.index("/dev/shm/") :].removesuffix(" (deleted)"))
            for entry in Path(f"/proc/{process.pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if (target := str(entry.readlink())).startswith("/dev/shm/"):
                        files.add(target.removesuffix(" (deleted)"))
    return {"pids": [process.pid for process in processes[1:]], "shared_memory": sorted(files)}


def work_together(engine: Engine, world: World) -> tuple[list[Any], list[Any]]:
    """Let some actors exchange large arrays, directly and in a group."""
    relays = [engine.spawn(Relay) for _ in range(2)]
    members = [engine.spawn(Member, rank) for rank in range(2)]
    group = engine.group(members)
    value = engine.put(np.zeros(200_000, np.float32))
    for relay in relays * 2:
        value = relay.plus(value)
    engine.get([value, *(member.repeat(group, 3, 50_000) for member in members)], timeout_s=world.limit_s)
    return relays, members


def success(world: World) -> dict[str, list[Any]]:
    with world.engine() as engine:
        work_together(engine, world)
        return footprint()


def failure(world: World) -> dict[str, list[Any]]:
    seen: dict[str, list[Any]] = {}
    with contextlib.suppress(OddError), world.engine() as engine:
        work_together(engine, world)
        seen = footprint()
        engine.get(engine.spawn(Faulty).odd(1), timeout_s=world.limit_s)
    return seen


def busy(world: World) -> dict[str, list[Any]]:
    """Close with one actor hung, two waiting in groups, and results that were not fetched."""
    with world.engine() as engine:
        relays, members = work_together(engine, world)
        seen = footprint()
        waiting = [members[0].meet(engine.group(members)), members[1].receive_from_first(engine.group(members))]
        refs = [world.hang(relays[0]), *waiting, relays[0].echo(np.zeros(100_000))]
        engine.wait(refs, timeout_s=0.1)
    return seen


def kill(world: World) -> dict[str, list[Any]]:
    with world.engine() as engine:
        relays, members = work_together(engine, world)
        seen = footprint()
        engine.kill(relays[0])
        engine.kill(members[0])
        engine.get(relays[1].plus(np.zeros(100_000)), timeout_s=world.limit_s)
    return seen


def between_actors(world: World) -> dict[str, list[Any]]:
    """Close while one actor waits for another, which hangs."""
    with world.engine() as engine:
        relays, _ = work_together(engine, world)
        callers = [engine.spawn(Caller, relay) for relay in relays]
        engine.get([caller.pass_on(np.zeros(50_000, np.float32)) for caller in callers], timeout_s=world.limit_s)
        seen = footprint()
        engine.wait([world.hang(relays[0]), *(caller.ask("echo", 1) for caller in callers)], timeout_s=0.1)
    return seen


def sigkill(world: World) -> dict[str, list[Any]]:
    with world.engine() as engine:
        relays, _ = work_together(engine, world)
        seen = footprint()
        with contextlib.suppress(ActorLost):
            engine.get(relays[0].die(np.zeros(100_000)), timeout_s=world.limit_s)
        engine.get(relays[1].plus(np.zeros(100_000)), timeout_s=world.limit_s)
    return seen


def disturbed(world: World) -> dict[str, list[Any]]:
    """Close with one actor that hangs, one that is slowed, and one that waits for the first."""
    with world.engine() as engine:
        relays, members = work_together(engine, world)
        seen = footprint()
        engine.disturb(relays[0], Disturbance("hang"))
        engine.disturb(members[0], Disturbance("slow"))
        engine.wait([relays[1].echo(relays[0].echo(1)), members[0].inputs(10)], timeout_s=world.limit_s)
    return seen


def interrupted_in_calls(world: World) -> dict[str, list[Any]]:
    with world.engine() as engine:
        relays, _ = work_together(engine, world)
        announce(footprint())
        while True:
            engine.get(relays[1].plus(relays[0].plus(np.zeros(10_000))))


def interrupted_in_collectives(world: World) -> dict[str, list[Any]]:
    with world.engine() as engine:
        _, members = work_together(engine, world)
        group = engine.group(members)
        announce(footprint())
        while True:
            engine.get([member.repeat(group, 100, 1000) for member in members])


def interrupted_in_a_hung_call(world: World) -> dict[str, list[Any]]:
    with world.engine() as engine:
        relays, _ = work_together(engine, world)
        announce(footprint())
        while True:
            engine.get(world.hang(relays[0]))


def interrupted_while_one_is_stopped(world: World) -> dict[str, list[Any]]:
    with world.engine() as engine:
        relays, _ = work_together(engine, world)
        engine.disturb(relays[0], Disturbance("hang"))
        never = relays[0].echo(1)
        announce(footprint())
        while True:
            with contextlib.suppress(
                *[RunError] * world.virtual_time
            ):  # virtual time knows at once that it never arrives
                engine.get(never)


def announce(report: dict[str, Any]) -> None:
    print(json.dumps(report), flush=True)  # noqa: T201 - the test reads this


def descriptors() -> set[str]:
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}


def left_open(before: set[str], on_ray: bool) -> list[str]:
    """Return the open descriptors, with descriptions.

    On Ray, one of its threads closes sockets, maybe later. A gRPC socket whose connection has ended may even stay open; it
    belongs to no engine.
    """
    deadline = time.monotonic() + CLOSED_WITHIN_S
    while (left := descriptors() - before) and time.monotonic() < deadline:
        time.sleep(0.01)
    return [f"{number}: {described(number)}" for number in sorted(left) if not (on_ray and is_over(int(number)))]


def is_over(descriptor: int) -> bool:
    """Return whether a descriptor of this process is an unconnected socket to which no process can connect."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as ours:
            if ours.family not in (socket.AF_INET, socket.AF_INET6):
                return False
            if ours.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                return False
            ours.getpeername()
    except OSError as error:
        return error.errno in (errno.ENOTCONN, errno.EINVAL)
    return False


def described(descriptor: str) -> str:
    """Return a description of a descriptor of this process."""
    with contextlib.suppress(OSError):
        return str(Path(f"/proc/self/fd/{descriptor}").readlink())
    return "closed meanwhile"


def main(world_name: str, scene_name: str) -> None:
    world, scene = world_named(world_name), globals()[scene_name]
    try:
        with world.ground():
            scene(world)  # descriptors that a library opens once are open after this
            gc.collect()
            before = descriptors()
            seen = scene(world)
    except KeyboardInterrupt:
        sys.exit(130)
    gc.collect()
    announce(
        seen
        | {
            "children": [process.pid for process in psutil.Process().children(recursive=True)],
            "threads": [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()],
            "descriptors": left_open(before, on_ray="ray" in (world.name, world.plugin)),
        }
    )


if __name__ == "__main__":
    main(*sys.argv[1:])

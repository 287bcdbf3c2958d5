"""Heartbeats: a thread in each actor's process writes them to Ray's key-value store, and the driver reads them there.

A heartbeat has the time of the main thread's last progress: now between calls, and within a call its start, declared work or
the last collective. So a process that is stuck in a call looks like a stopped one: its heartbeat does not advance.
"""

from __future__ import annotations

import contextlib
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from chimera.engines.signals import Process, this_process

if TYPE_CHECKING:
    from chimera.engines.ray.refs import Channel

NAMESPACE = b"chimera"
_PERIOD_S = 0.5
_CHECK_INTERVAL_S = 0.25
SEEN_WITHIN_S = _PERIOD_S + _CHECK_INTERVAL_S
"""Maximum age of a heartbeat when the driver reads it, in seconds."""

_ENTRY = struct.Struct("dqq56s")
"""Time of the last heartbeat on the driver's clock, the process (see `this_process`), the id of the node in Ray."""


class NodeProcess(NamedTuple):
    """A process of a cluster: the id of its node, and its identity there."""

    node: str
    process: Process


def send_heartbeats(key: str, last_heartbeat_s: Callable[[], float]) -> None:
    """Write the first heartbeat of this actor at once, and start a thread that writes the later ones.

    Parameters
    ----------
    key : key of the actor.
    last_heartbeat_s : returns the time of the actor's last progress, on the driver's clock.
    """
    import ray

    node, process = ray.get_runtime_context().get_node_id().encode(), this_process()
    first_s = last_heartbeat_s()
    _put(key, _ENTRY.pack(first_s, *process, node))

    def keep_on(sent_s: float) -> None:
        while True:
            time.sleep(_PERIOD_S)
            heartbeat_s = last_heartbeat_s()
            if heartbeat_s == sent_s:
                continue
            with contextlib.suppress(ray.exceptions.RayError):  # the next one may succeed
                if not _put(key, _ENTRY.pack(heartbeat_s, *process, node)):
                    _forget(key)  # the driver has deleted it: the engine is closed
                    return
                sent_s = heartbeat_s

    threading.Thread(target=keep_on, args=(first_s,), name="chimera-heartbeats", daemon=True).start()


class Heartbeats:
    """The heartbeats of one actor, as the driver has read them.

    Attributes
    ----------
    heartbeat_s : time of the last heartbeat, on the driver's clock.
    process : the process of the actor; None before the first heartbeat.
    """

    def __init__(self, spawned_s: float) -> None:
        self.heartbeat_s = self.checked_s = spawned_s
        self.process: NodeProcess | None = None
        self._reported_s: float | None = None

    def take(self, entry: bytes | None, now: float) -> None:
        """Read the entry in the store now."""
        if entry is not None:
            reported_s, pid, started, node = _ENTRY.unpack(entry)
            self.process = NodeProcess(node.rstrip(b"\0").decode(), (pid, started))
            if reported_s != self._reported_s:  # it is new since the last read, whatever the clock of its node shows
                self._reported_s, self.heartbeat_s = reported_s, min(max(reported_s, self.checked_s), now)
        self.checked_s = now


def read_heartbeats(channels: Sequence[Channel]) -> None:
    """Read the heartbeats of these actors, unless the last reading is too recent."""
    now = time.monotonic()
    due = {
        channel.key.encode(): channel.heartbeats
        for channel in channels
        if now - channel.heartbeats.checked_s >= _CHECK_INTERVAL_S
    }
    if not due:
        return
    from ray.experimental.internal_kv import internal_kv_get_gcs_client

    found = internal_kv_get_gcs_client().internal_kv_multi_get(list(due), NAMESPACE)
    for key, heartbeats in due.items():
        heartbeats.take(found.get(key), now)


def forget_engine(key: str) -> None:
    """Delete the entries of an engine's actors and groups from Ray's key-value store."""
    _forget(key, all_that_begin_so=True)


def _forget(key: str, all_that_begin_so: bool = False) -> None:
    from ray.experimental import internal_kv

    if internal_kv._internal_kv_initialized():
        internal_kv._internal_kv_del(key, del_by_prefix=all_that_begin_so, namespace=NAMESPACE)


def _put(key: str, entry: bytes) -> bool:
    """Write an entry, and return whether there was one before."""
    from ray.experimental import internal_kv

    return bool(internal_kv._internal_kv_put(key, entry, namespace=NAMESPACE))
